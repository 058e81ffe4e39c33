// One run: its status, its steps and samples over time, and links to its executed notebook and profile.

class Detail {
  constructor(model, set, pins) {
    Object.assign(this, { model, set, pins });
    this.title = element("h4", { tabindex: "-1" });
    this.facts = element("div");
    this.whole = element("input", { type: "checkbox", onchange: () => this.drawSeries() });
    this.fold = element("label", { class: "dsnb-tick dsnb-soft" }, this.whole, "Show start-up and warm-up, too");
    this.grid = element("div", { class: "dsnb-series" });
    this.charts = model.seriesCharts.map((one) => {
      const box = element("div");
      this.grid.append(box);
      return new Chart(box, model.charts.lines, `${one.heading} of this run over time`, {}, 170);
    });
    this.hint = element("p", { class: "dsnb-soft" }, "Click a point in the first chart, or a run's name in the table below, to see its steps.");
    this.node = element("div", {}, this.hint, this.title, this.facts, this.fold, this.grid);
  }

  show(run, state) {
    const known = run !== null && run < this.model.runs;
    this.hint.hidden = known;
    this.node.closest(".dsnb-card")?.classList.toggle("dsnb-closed", !known);
    for (const node of [this.title, this.facts, this.fold, this.grid]) node.hidden = !known;
    if (!known) return;
    const { model } = this;
    const one = model.series[run];
    const experiment = model.experiments.codes[run];
    this.title.textContent = `${model.experiments.names[experiment]}, run ${model.repeats[run] ?? "?"}`;
    const anatomy = [runFigures(model, run, state), ...(stepAnatomy(model, run) ?? []), ...memoryAnatomy(model, run)];
    this.facts.replaceChildren(...[...this.describe(run, one), ...anatomy, this.buttons(run, experiment)].filter(Boolean));
    this.one = one;
    const drawn = Boolean(one?.step || one?.sample_s);
    this.grid.hidden = !drawn;
    this.fold.hidden = !drawn || !one?.warm_s;
    if (drawn) this.drawSeries();
  }

  drawSeries() {
    const { model, one, whole } = this;
    model.seriesCharts.forEach((part, index) => this.charts[index].draw(series(model, one, part, whole.checked)));
  }

  describe(run, one) {
    const { model } = this;
    const status = model.status.labels[model.status.codes[run]];
    const axes = model.experimentAxes.map((name) => model.axis.get(name)).filter(({ isFilter }) => isFilter);
    const settings = axes.map((axis) => axis.shortLabels[axis.codes[run]]).filter(Boolean).join(", ");
    const lines = [element("p", { class: model.ok[run] ? null : "dsnb-bad" }, `Status: ${status}. ${model.causes[run] ?? ""}`)];
    const advice = model.memory.texts[model.memory.advice[run]];
    if (advice) lines.push(element("p", {}, `To change: ${advice}.`));
    const memory = model.memory.sentences(run);
    if (memory.length) lines.push(element("p", {}, `Memory: ${memory.join("; ")}.`));
    if (settings) lines.push(element("p", {}, settings));
    if (model.notes[run]) lines.push(element("p", {}, `Note: ${model.notes[run]}.`));
    if (model.unusual[run]) lines.push(element("p", {}, element("strong", {}, "Look at this run: "), `${model.unusual[run]}. It counts in every figure.`));
    const note = (text) => lines.push(element("p", { class: "dsnb-soft" }, text));
    if (!one) note(`The steps of this run ${model.leftOut}`);
    else if (!one.step && !one.sample_s) note("This run recorded no steps.");
    if (one?.every > 1) note(`1 in ${one.every} steps is shown.`);
    if (one?.gpus > 1) note(`Averaged over ${one.gpus} GPUs.`);
    return lines;
  }

  buttons(run, experiment) {
    const { model } = this;
    const base = element("button", { type: "button", onclick: () => this.set({ base: model.experiments.names[experiment] }) }, "Use as baseline");
    const pin = this.pins.button(run, "Pin this run");
    const pinSetting = this.pins.button(model.experiments.names[experiment], "Pin its setting");
    const parent = model.files.parents[experiment] ?? model.experiments.names[experiment];
    const links = model.files.kinds.filter((kind) => kind.available[run]).map((kind) => {
      const address = model.link([...parent.split("/"), `run${model.repeats[run]}`, kind.name]);
      return address ? element("a", { href: address, target: "_blank", rel: "noopener" }, kind.title) : null;
    });
    const close = element("button", { type: "button", onclick: () => this.set({ run: null }) }, "Close");
    return element("p", { class: "dsnb-bar" }, base, pin, pinSetting, ...links, close);
  }
}
