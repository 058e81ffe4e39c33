// One run: its status and figures, its steps and samples over time, links to its notebook and profile.

class Detail {
  constructor(model, set, pins) {
    Object.assign(this, { model, set, pins });
    this.title = element("h4", { tabindex: "-1" });
    this.facts = element("div");
    this.charts = model.seriesCharts.map(({ heading: title }) => new Chart("lines", `${title} of this run over time`, {}, 170));
    this.grid = box("dsnb-series", this.charts.map(({ node }) => node));
    this.node = card("One run", this.title, this.facts, this.grid);
  }

  show(run, state) {
    const { model } = this;
    this.node.hidden = run === null || run >= model.runs;
    if (this.node.hidden) return;
    const steps = model.series[run];
    const experiment = model.experiments.codes[run];
    this.title.textContent = `${model.short[experiment]}, run ${model.repeats[run] ?? "?"}`;
    this.facts.replaceChildren(...this.describe(run, steps), this.figures(run, state), this.buttons(run, experiment));
    this.grid.hidden = !steps?.step && !steps?.sample_s;
    if (!this.grid.hidden) model.seriesCharts.forEach((part, index) => this.charts[index].draw(series(model, steps, part)));
  }

  describe(run, steps) {
    const { model } = this;
    const status = element("p", { class: model.ok[run] ? null : "dsnb-bad" }, `Status: ${model.statuses[run]}. ${model.causes[run] ?? ""}`);
    const settings = model.experimentAxes.map((name) => model.axis.get(name)).map(({ unusual, codes }) => unusual[codes[run]]);
    const notes = [
      settings.filter(Boolean).join(", "),
      steps ? "" : `The steps of this run ${model.leftOut}`,
      steps && !steps.step && !steps.sample_s ? "This run recorded no steps." : "",
      steps?.every > 1 ? `1 in ${steps.every} steps is shown.` : "",
      steps?.gpus > 1 ? `Averaged over ${steps.gpus} GPUs.` : "",
    ];
    return [status, ...model.remarksOn(run).map((text) => element("p", {}, text)), ...notes.filter(Boolean).map((text) => soft(text))];
  }

  figures(run, state) {
    const { model } = this;
    const items = model.measured([run], state).map(({ name, heading: title }) => element("div", {}, element("dt", {}, title), element("dd", {}, model.number(name, model.values(name, state)[run]))));
    return items.length ? element("dl", { class: "dsnb-facts" }, ...items) : "";
  }

  buttons(run, experiment) {
    const { model } = this;
    const name = model.experiments.names[experiment];
    const parent = model.files.parents[experiment] ?? name;
    const links = model.files.kinds.filter((kind) => kind.available[run]).map((kind) => {
      const address = model.link([...parent.split("/"), `run${model.repeats[run]}`, kind.name]);
      return address ? element("a", { href: address, target: "_blank", rel: "noopener" }, kind.title) : null;
    });
    const pins = [this.pins.button(run, "Pin this run"), this.pins.button(name, "Pin its setting")];
    return element("p", { class: "dsnb-bar" }, ...pins, ...links, button("Close", () => this.set({ run: null })));
  }
}
