// One run: how it ended, its steps and samples over time, and the way to its executed notebook and profile.

class Detail {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.title = element("h4", { tabindex: "-1" });
    this.words = element("div");
    this.grid = element("div", { class: "dsnb-series" });
    this.charts = SERIES.map((one) => {
      const box = element("div");
      this.grid.append(box);
      return new Chart(box, model.charts.lines, `${one.title} of this run over time`, {}, 170);
    });
    this.hint = element("p", { class: "dsnb-soft" }, "Click a point in the first chart, or a run's name in the table below, to see its steps.");
    this.node = element("div", {}, this.hint, this.title, this.words, this.grid);
  }

  show(run) {
    const there = run !== null && run < this.model.runs;
    this.hint.hidden = there;
    this.node.closest(".dsnb-card")?.classList.toggle("dsnb-closed", !there);
    for (const node of [this.title, this.words, this.grid]) node.hidden = !there;
    if (!there) return;
    const { model } = this;
    const one = model.series[run];
    const experiment = model.experiments.codes[run];
    this.title.textContent = `${model.experiments.names[experiment]}, run ${model.repeats[run] ?? "?"}`;
    this.words.replaceChildren(...this.said(run, one), this.buttons(run, experiment));
    const drawn = Boolean(one?.step || one?.sample_s);
    this.grid.hidden = !drawn;
    if (drawn) SERIES.forEach((part, index) => this.charts[index].draw(series(one, part)));
  }

  said(run, one) {
    const { model } = this;
    const status = model.status.labels[model.status.codes[run]];
    const settings = model.experimentAxes.map((name) => model.axis.get(name).said[model.axis.get(name).codes[run]]).filter(Boolean).join(", ");
    const lines = [element("p", { class: model.ok[run] ? null : "dsnb-bad" }, `Status: ${status}. ${model.causes[run] ?? ""}`)];
    if (settings) lines.push(element("p", {}, settings));
    if (model.notes[run]) lines.push(element("p", {}, `Note: ${model.notes[run]}.`));
    const note = (text) => lines.push(element("p", { class: "dsnb-soft" }, text));
    if (!one) note(`Its steps ${model.leftOut}`);
    else if (!one.step && !one.sample_s) note("It has written no steps.");
    if (one?.every > 1) note(`One step in ${one.every} is shown.`);
    if (one?.gpus > 1) note(`Means over ${one.gpus} GPUs.`);
    return lines;
  }

  buttons(run, experiment) {
    const { model } = this;
    const base = element("button", { type: "button", onclick: () => this.set({ base: model.experiments.names[experiment] }) }, "Compare others with this setting");
    const parent = model.files.parents[experiment] ?? model.experiments.names[experiment];
    const links = model.files.kinds.filter((kind) => kind.there[run]).map((kind) => {
      const address = model.linked([...parent.split("/"), `run${model.repeats[run]}`, kind.name]);
      return address ? element("a", { href: address, target: "_blank", rel: "noopener" }, kind.title) : null;
    });
    const close = element("button", { type: "button", onclick: () => this.set({ run: null }) }, "Close");
    return element("p", { class: "dsnb-bar" }, base, ...links, close);
  }
}
