// The tables: runs, effects of one change, the Pareto front, two pinned settings or runs side by side.

const ROWS_PER_PAGE = 25;

// Whether a column says the same of all runs, or nothing.
const isConstant = (values) => {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length === 0 || (known.length === values.length && known.every((value) => value === known[0]) && values.length > 1);
};

// A table that turns pages and is saved as CSV. Its columns are { head (a cell), cell(item) }; `lines()` are those of the file.
class DataTable {
  constructor(caption, file) {
    Object.assign(this, { page: 0, printing: false, items: [], columns: [] });
    this.head = element("tr");
    this.body = element("tbody");
    this.range = element("span", { class: "dsnb-range-shown" });
    this.back = button("Previous", () => this.turnPage(-1));
    this.next = button("Next", () => this.turnPage(1));
    this.save = button("Save as CSV", () => saveCsv(file, this.lines()));
    this.node = element(
      "div", { class: "dsnb-later" },
      scrollTable(caption, this.head, this.body, "dsnb-runs"),
      element("div", { class: "dsnb-bar" }, this.back, this.range, this.next, this.save),
    );
  }

  show(columns, items, lines) {
    Object.assign(this, { columns, items, lines, page: 0 });
    this.head.replaceChildren(...columns.map(({ head }) => head));
    this.draw();
  }

  turnPage(pages) {
    this.page += pages;
    this.draw();
  }

  // All rows while the page is printed.
  print(printing) {
    this.printing = printing;
    this.draw();
  }

  draw() {
    const { columns, items } = this;
    const size = this.printing ? Math.max(items.length, 1) : ROWS_PER_PAGE;
    const [first, last] = [this.page * size, Math.min((this.page + 1) * size, items.length)];
    this.body.replaceChildren(...items.slice(first, last).map((item) => element("tr", {}, ...columns.map(({ cell }) => cell(item)))));
    this.range.textContent = `${items.length ? first + 1 : 0} to ${last} of ${items.length}`;
    this.back.disabled = this.page === 0;
    this.next.disabled = last >= items.length;
    this.save.disabled = items.length === 0;
  }
}

class RunTable extends DataTable {
  constructor(model, open, set) {
    super("The selected runs", "runs");
    Object.assign(this, { model, open, set, known: new Map(this.known(model).map((column) => [column.name, column])) });
  }

  // All columns, those of figures before those of settings: { name, title, isText, value(run, state), text(run, value), file(run, value) }; a
  // value is a number to sort by, NaN if it is missing.
  known(model) {
    const plain = (name, title, value, text) => ({ name, title, value, text, file: (run, number) => number });
    const { codes, names } = model.experiments;
    const experiment = { name: "experiment", title: "experiment", isText: true, value: (run) => codes[run], text: (run) => names[codes[run]], file: (run) => names[codes[run]] };
    return [
      experiment,
      plain("repeat", "repeat", (run) => model.repeats[run] ?? NaN, (run) => String(model.repeats[run] ?? "")),
      plain("headroom", "GPU memory left (%)", (run) => 100 * model.memory.headroom(run), (run, value) => (Number.isNaN(value) ? "" : value.toFixed(0))),
      ...model.figures.map(({ name, heading: title }) => ({
        name, title, value: (run, state) => model.values(name, state)[run],
        text: (run, value) => model.number(name, value), file: (run, value) => model.displayed(name, value),
      })),
      ...model.axes.map(({ name, title, codes: own, labels, values }) => ({
        name, title, isText: true, value: (run) => own[run], text: (run) => labels[own[run]], file: (run) => values[own[run]],
      })),
    ];
  }

  // The columns in which the runs of the task differ.
  varying() {
    const { model, state } = this;
    if (this.shown?.task !== state.task) {
      const runs = model.runsOf(model.task(state));
      const [experiment, ...others] = this.known.values();
      const columns = [experiment, ...others.filter(({ value }) => !isConstant(runs.map((run) => value(run, state))))];
      this.shown = { task: state.task, columns };
    }
    return this.shown.columns;
  }

  showRuns(runs, state) {
    this.state = state;
    const focused = this.head.contains(document.activeElement) ? document.activeElement.closest("th").dataset.name : null;
    const columns = this.varying().map(({ name, title, isText, value, text }) => {
      const direction = state.sort?.[0] === name ? state.sort[1] : "none";
      const attributes = { scope: "col", "aria-sort": direction, class: isText ? "dsnb-text" : null, "data-name": name };
      const head = element("th", attributes, button(title, () => this.sortBy(name)));
      if (name === "experiment") return { head, cell: (run) => this.link(run, text(run)) };
      const classes = (run) => [name === "status" && !this.model.ok[run] && "dsnb-bad", isText && "dsnb-text"].filter(Boolean).join(" ");
      return { head, cell: (run) => element("td", { class: classes(run) || null }, text(run, value(run, state))) };
    });
    this.show(columns, this.sorted(runs), () => this.fileLines());
    if (focused) this.head.querySelector(`th[data-name="${focused}"] button`)?.focus();
  }

  link(run, name) {
    return element("th", { scope: "row" }, button(name, () => this.open(run), { class: "dsnb-link", title: `${name}: show this run's steps` }));
  }

  sortBy(name) {
    const [before, direction] = this.state.sort ?? [];
    const first = this.model.figure.has(name) ? "descending" : "ascending";
    const other = direction === "ascending" ? "descending" : "ascending";
    this.set({ sort: [name, before === name ? other : first] });
  }

  // The runs in the order of the table; settings sort in the order of their values.
  sorted(runs) {
    if (!this.state.sort) return runs;
    const [name, direction] = this.state.sort;
    const sign = direction === "descending" ? -1 : 1;
    const keyed = runs.map((run) => [this.known.get(name).value(run, this.state), run]);
    const missing = ([key]) => Number(Number.isNaN(key));
    keyed.sort((a, b) => missing(a) - missing(b) || sign * (a[0] - b[0]) || a[1] - b[1]);
    return keyed.map(([, run]) => run);
  }

  // For a file: all selected runs in table order, all columns, settings before figures, headings with units, numbers in those units as precise
  // as the page has them; then the settings that are the same for all.
  fileLines() {
    const { model, state } = this;
    const constants = Object.entries(model.constants);
    const names = ["experiment", "repeat", "headroom", ...model.axes.map(({ name }) => name), ...model.figures.map(({ name }) => name)];
    const columns = names.map((name) => this.known.get(name));
    const rows = this.items.map((run) => [...columns.map(({ value, file }) => file(run, value(run, state))), model.causes[run] ?? "", ...constants.map(([, one]) => one)]);
    return [[...columns.map(({ title }) => title), "cause", ...constants.map(([name]) => name)], ...rows];
  }
}

// A change, coloured by whether it is for the better; grey unless the verdict is that there is one.
const changeCell = (model, name, { values, text, verdict, reason, note, within }) => {
  if (!text) return element("td", {}, "");
  const good = (values[1] > values[0]) === (model.better(name) === "higher");
  const kind = !model.better(name) || verdict !== "likely" ? "dsnb-same" : good ? "dsnb-better" : "dsnb-worse";
  const timed = name.startsWith("tokens_per_s") || name === "step_time_s"; // the figures that the steps' spread is about
  return element("td", {}, element("span", { class: `dsnb-figure ${kind}` }, text), ...underChange(reason, [note, timed && within]));
};

const underChange = (reason, remarks) => {
  const known = remarks.filter(Boolean).join("; ");
  return [element("span", { class: "dsnb-verdict" }, reason), known ? element("span", { class: "dsnb-remark" }, known) : null];
};

// What the verdicts of the table rely on, and how many runs are missing for them.
const verdictNotes = (model, effects, relevance) => {
  const { fewestRuns } = model.limits;
  const all = effects.flatMap(({ changes }) => changes).filter(({ text }) => text);
  const few = all.filter(({ verdict, counted }) => verdict === "few" && counted === "run");
  const least = Math.min(...few.map(({ n, baseN }) => Math.min(n, baseN)));
  const advice = few.length
    ? `Too few runs for ${few.length === all.length ? "any verdict" : `${few.length} of ${all.length} verdicts`}: ${fewestRuns} of each setting are needed, ` +
      `up to ${fewestRuns - least} more than there are (dsnb sweep PARAMS --set repeats=${fewestRuns} adds them). `
    : "";
  return element("p", { class: "dsnb-soft" }, `${advice}${fill(model.words.method, { relevance: percent(relevance) })}`);
};

// The effect of changing one setting on these figures.
const effectTable = (model, effects, figures, relevance) => {
  if (!effects.length) return element("p", { class: "dsnb-empty" }, "No selected experiment differs from the baseline in exactly one setting.");
  const rows = effects.map((effect) => {
    const axis = model.axis.get(effect.axis);
    const text = `${axis.title}: ${axis.labels[effect.before]} → ${axis.labels[effect.after]}`;
    const failed = effect.runs.filter((run) => !model.ok[run]);
    const statuses = [...new Set(failed.map((run) => model.status.labels[model.status.codes[run]]))].join(", ");
    const note = failed.length ? element("span", { class: "dsnb-bad" }, ` ${failed.length} of ${effect.runs.length} ${statuses}`) : null;
    return element("tr", {}, element("th", { scope: "row" }, text, note), ...figures.map((name, index) => changeCell(model, name, effect.changes[index])));
  });
  const head = ["change", ...figures.map((name) => model.title(name))].map((title, index) => heading(title, !index));
  return element("div", {}, scrollTable("Effect of one change", head, rows, "dsnb-wrapped"), verdictNotes(model, effects, relevance));
};

// The Pareto front as a list, numbered as its points are in the chart.
const frontList = (model, front, state, pins) => {
  const reason = model.figures.length ? "choose two different metrics for which higher or lower is better." : "nothing was measured.";
  if (!front.length) return element("p", { class: "dsnb-soft" }, `No Pareto front: ${reason}`);
  const figure = (point, side) => model.labelled(state[side], model.number(state[side], point[side]));
  const items = front.map((point) => {
    const pin = pins.button(model.experiments.names[point.experiment], "Pin");
    pin.setAttribute("aria-label", `Pin ${model.short[point.experiment]}`);
    return element("li", {}, element("strong", {}, model.short[point.experiment]), `: ${figure(point, "y")}, ${figure(point, "x")} `, pin);
  });
  return element("ol", {}, ...items);
};

const PIN_COLOURS = ["#0072b2", "#d55e00"];
// Two pinned settings or runs side by side. A pin is the name of an experiment, or the position of a run.
class Pins {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.table = element("div");
    this.note = element("p", { class: "dsnb-soft" }, "Pin a second setting or run to compare it with A.");
    const clear = button("Remove pins", () => set({ pins: [] }));
    const swap = button("Swap A and B", () => set({ pins: [...this.pins].reverse() }));
    this.node = element(
      "section", { class: "dsnb-card", hidden: true }, element("h3", {}, "A and B"), this.table, this.note, element("div", { class: "dsnb-bar" }, swap, clear),
    );
  }

  // A button that pins an experiment or a run: as A, then B, then in place of the last one.
  button(pin, label) {
    return button(label, () => this.set({ pins: [...(this.pins ?? []).filter((one) => one !== pin).slice(0, 1), pin] }));
  }

  name(pin) {
    const { model } = this;
    if (typeof pin === "string") return model.short[model.experiments.names.indexOf(pin)];
    return `${model.short[model.experiments.codes[pin]]}, run ${model.repeats[pin] ?? "?"}`;
  }

  show(state) {
    this.pins = state.pins;
    this.node.hidden = !this.pins.length;
    this.note.hidden = this.pins.length > 1;
    this.table.replaceChildren(...(this.pins.length > 1 ? this.compare(state) : this.pins.map((pin) => `A: ${this.name(pin)}`)));
  }

  // Settings that differ on top, then the figures that either of them measured.
  compare(state) {
    const { model, pins } = this;
    const [ours, theirs] = pins.map((pin) => model.experiments.names.indexOf(pin));
    const runs = pins.map((pin) => (typeof pin === "number" ? [pin] : model.whole.get(model.experiments.names.indexOf(pin))));
    const row = (title, texts, last = [""], style = null) =>
      element("tr", { class: style }, element("th", { scope: "row" }, title), ...texts.map((text) => element("td", {}, text)), element("td", {}, ...last));
    const first = runs.map(([run]) => run);
    const settings = model.axes.filter((axis) => axis.name !== "status" && axis.codes[first[0]] !== axis.codes[first[1]]);
    const figures = model.figures.filter(({ name }) => runs.flat().some((run) => !Number.isNaN(model.values(name, state)[run])));
    const rows = [
      ...settings.map((axis) => row(axis.title, first.map((run) => axis.labels[axis.codes[run]]), [""], "dsnb-differs")),
      row("runs that are ok", runs.map((own) => `${own.filter((run) => model.ok[run]).length} of ${own.length}`)),
      ...figures.map(({ name }) => {
        const isPair = ours >= 0 && theirs >= 0;
        const found = isPair ? compared(model, name, ours, theirs, state) : inWords(model, name, ofRuns(model, name, ...runs, state), state);
        const change = found.text ? [element("span", { class: "dsnb-figure" }, found.text), ...underChange(found.reason, [found.note])] : [found.note];
        return row(model.heading(name), found.values.map((value) => model.number(name, value)), change);
      }),
    ];
    const heads = pins.map((pin, index) => element("th", { scope: "col" }, mark("square", PIN_COLOURS[index]), ` ${"AB"[index]}: ${this.name(pin)}`));
    return [scrollTable("A and B", [heading("figure", true), ...heads, heading("B against A")], rows, "dsnb-pins dsnb-wrapped"), element("p", { class: "dsnb-soft" }, model.words.values)];
  }
}
