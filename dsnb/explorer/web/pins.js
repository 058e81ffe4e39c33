// Two pinned settings or runs side by side. A pin is the name of an experiment, or the position of a run.

const PIN_COLOURS = ["#0072b2", "#d55e00"];
const PIN_CHARTS = [
  { values: "step_time_s", title: "step time", heading: "step time (ms)", factor: 1000 },
  { values: "allocated_gib", title: "memory", heading: "memory allocated (GiB)", factor: 1 },
  { values: "loss", title: "loss", heading: "loss", factor: 1 },
];

class Pins {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.table = element("div");
    this.grid = element("div", { class: "dsnb-series" });
    this.charts = PIN_CHARTS.map((one) => {
      const box = element("div");
      this.grid.append(box);
      return new Chart(box, model.charts.lines, `${one.title} of the pinned runs by step`, { tooltip: ({ id }) => [this.name(this.pins[id])] }, 170);
    });
    this.note = element("p", { class: "dsnb-soft" });
    const clear = element("button", { type: "button", onclick: () => set({ pins: [] }) }, "Remove pins");
    const swap = element("button", { type: "button", onclick: () => set({ pins: [...this.pins].reverse() }) }, "Swap A and B");
    this.node = element(
      "section", { class: "dsnb-card", hidden: true }, element("h3", {}, "A and B"), this.table, this.note, this.grid,
      element("div", { class: "dsnb-bar" }, swap, clear),
    );
  }

  // A button that pins an experiment or a run: as A, then B, then in place of the last one.
  button(pin, label) {
    const add = () => this.set({ pins: [...(this.pins ?? []).filter((one) => one !== pin).slice(0, 1), pin] });
    return element("button", { type: "button", onclick: add }, label);
  }

  name(pin) {
    const { model } = this;
    if (typeof pin === "string") return model.short[model.experiments.names.indexOf(pin)];
    return `${model.short[model.experiments.codes[pin]]}, run ${model.repeats[pin] ?? "?"}`;
  }

  runs(pin) {
    if (typeof pin === "number") return [pin];
    const code = this.model.experiments.names.indexOf(pin);
    return [...this.model.experiments.codes.keys()].filter((run) => this.model.experiments.codes[run] === code);
  }

  show(state) {
    this.pins = state.pins;
    this.node.hidden = !this.pins.length;
    if (!this.pins.length) return;
    const runs = this.pins.map((pin) => this.runs(pin));
    this.table.replaceChildren(this.compare(runs, state));
    const waiting = this.pins.length < 2 ? "Pin a second setting or run to compare it with A." : "";
    const drawn = runs.map((own) => own.find((run) => this.model.series[run]?.step));
    const missing = drawn.filter((run) => run === undefined).length;
    this.note.textContent = [waiting, missing ? `The steps of ${missing} of them ${this.model.leftOut}` : ""].filter(Boolean).join(" ");
    this.grid.hidden = missing === drawn.length;
    if (!this.grid.hidden) PIN_CHARTS.forEach((one, index) => this.charts[index].draw(pinned(this.model, drawn, one)));
  }

  // Settings that differ on top, then the figures that either of them measured.
  compare(runs, state) {
    const { model } = this;
    const first = runs.map(([run]) => run);
    const settings = model.axes.filter((axis) => axis.name !== "status" && new Set(first.map((run) => axis.codes[run])).size > 1);
    const figures = model.figures.filter(({ name }) => runs.flat().some((run) => !Number.isNaN(model.values(name, state)[run])));
    const cells = (texts) => texts.map((text) => element("td", {}, text));
    const blank = runs.length > 1 ? [element("td", {}, "")] : [];
    const rows = settings.map((axis) =>
      element("tr", { class: "dsnb-differs" }, element("th", { scope: "row" }, axis.title), ...cells(first.map((run) => axis.labels[axis.codes[run]])), ...blank));
    const counts = runs.map((own) => `${own.filter((run) => model.ok[run]).length} of ${own.length}`);
    rows.push(element("tr", {}, element("th", { scope: "row" }, "runs that are ok"), ...cells(counts), ...blank));
    for (const { name } of figures) {
      const [base, ...others] = runs;
      const values = model.values(name, state);
      const found = model.differences.compare(base, others.length ? others : [base], name, values, state.relevance).at(0);
      const measured = (own) => model.spread(values, own).median; // where no run is ok
      const texts = runs.map((own, side) => model.number(name, Number.isNaN(found.values[side]) ? measured(own) : found.values[side]));
      rows.push(element("tr", {}, element("th", { scope: "row" }, model.heading(name)), ...cells(texts), ...(blank.length ? [this.difference(found)] : [])));
    }
    const heads = this.pins.map((pin, index) => element("th", { scope: "col" }, mark("square", PIN_COLOURS[index]), ` ${"AB"[index]}: ${this.name(pin)}`));
    const last = blank.length ? [element("th", { scope: "col" }, "B against A")] : [];
    const head = element("tr", {}, element("th", { scope: "col", class: "dsnb-text" }, "figure"), ...heads, ...last);
    const table = element("table", {}, element("caption", {}, "A and B"), element("thead", {}, head), element("tbody", {}, ...rows));
    const box = element("div", { class: "dsnb-scroll dsnb-pins", tabindex: "0", role: "region", "aria-label": "A and B" }, table);
    return element("div", {}, box, blank.length ? element("p", { class: "dsnb-soft" }, model.method.values) : null);
  }

  difference({ text, reason, note }) {
    if (!text) return element("td", {}, note);
    const remark = note ? element("span", { class: "dsnb-remark" }, note) : null;
    return element("td", {}, element("span", { class: "dsnb-figure" }, text), element("span", { class: "dsnb-verdict" }, reason), remark);
  }
}
