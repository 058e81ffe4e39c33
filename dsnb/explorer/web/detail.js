// One run: its status and figures, its steps and samples over time, links to its notebook and profile.

// Everything that was measured of a run, in its display units.
const runFigures = (model, run, state) => {
  const known = model.figures.filter(({ name }) => !Number.isNaN(model.values(name, state)[run]));
  const items = known.map(({ name }) => element("div", {}, element("dt", {}, model.heading(name)), element("dd", {}, model.number(name, model.values(name, state)[run]))));
  return known.length ? element("dl", { class: "dsnb-facts" }, ...items) : null;
};

class Detail {
  constructor(model, set, pins) {
    Object.assign(this, { model, set, pins });
    this.title = element("h4", { tabindex: "-1" });
    this.facts = element("div");
    this.grid = element("div", { class: "dsnb-series" });
    this.charts = model.seriesCharts.map((one) => {
      const box = element("div");
      this.grid.append(box);
      return new Chart(box, model.charts.lines, `${one.heading} of this run over time`, {}, 170);
    });
    this.hint = element("p", { class: "dsnb-soft" }, "Click a point in the first chart, or a run's name in the table below, to see its steps.");
    this.node = element("div", {}, this.hint, this.title, this.facts, this.grid);
  }

  show(run, state) {
    const known = run !== null && run < this.model.runs;
    this.hint.hidden = known;
    this.node.closest(".dsnb-card")?.classList.toggle("dsnb-closed", !known);
    for (const node of [this.title, this.facts, this.grid]) node.hidden = !known;
    if (!known) return;
    const { model } = this;
    const one = model.series[run];
    const experiment = model.experiments.codes[run];
    this.title.textContent = `${model.experiments.names[experiment]}, run ${model.repeats[run] ?? "?"}`;
    this.facts.replaceChildren(...[...this.describe(run, one), runFigures(model, run, state), this.buttons(run, experiment)].filter(Boolean));
    this.grid.hidden = !one?.step && !one?.sample_s;
    if (!this.grid.hidden) model.seriesCharts.forEach((part, index) => this.charts[index].draw(series(model, one, part)));
  }

  describe(run, one) {
    const { model } = this;
    const status = model.status.labels[model.status.codes[run]];
    const lines = [element("p", { class: model.ok[run] ? null : "dsnb-bad" }, `Status: ${status}. ${model.causes[run] ?? ""}`)];
    const settings = model.experimentAxes.map((name) => model.axis.get(name)).map(({ values, phrases, codes }) => (values[codes[run]] === null ? "" : phrases[codes[run]]));
    const left = model.memory.headroom(run);
    const memory = Number.isNaN(left) ? "" : `Memory: ${fixed(100 * left, 0)} % of the GPU's ${significant(model.memory.capacity(run))} GiB left.`;
    lines.push(...[memory, ...model.said(run)].filter(Boolean).map((text) => element("p", {}, text)));
    const note = (text) => lines.push(element("p", { class: "dsnb-soft" }, text));
    note(settings.filter(Boolean).join(", "));
    if (!one) note(`The steps of this run ${model.leftOut}`);
    else if (!one.step && !one.sample_s) note("This run recorded no steps.");
    if (one?.every > 1) note(`1 in ${one.every} steps is shown.`);
    if (one?.gpus > 1) note(`Averaged over ${one.gpus} GPUs.`);
    return lines;
  }

  buttons(run, experiment) {
    const { model } = this;
    const base = button("Use as baseline", () => this.set({ base: model.experiments.names[experiment] }));
    const pin = this.pins.button(run, "Pin this run");
    const pinSetting = this.pins.button(model.experiments.names[experiment], "Pin its setting");
    const parent = model.files.parents[experiment] ?? model.experiments.names[experiment];
    const links = model.files.kinds.filter((kind) => kind.available[run]).map((kind) => {
      const address = model.link([...parent.split("/"), `run${model.repeats[run]}`, kind.name]);
      return address ? element("a", { href: address, target: "_blank", rel: "noopener" }, kind.title) : null;
    });
    return element("p", { class: "dsnb-bar" }, base, pin, pinSetting, ...links, button("Close", () => this.set({ run: null })));
  }
}
