// The table of runs: figures first, then the settings that vary; sorted, with chosen columns, saved as CSV.

const ROWS_PER_PAGE = 25;

// The columns that the table may have besides the experiment's name: figures before settings.
const tableColumns = (model) => ["repeat", "headroom", ...model.figures.map(({ name }) => name), ...model.axes.map(({ name }) => name)];

// Whether a column says the same of all runs, or nothing.
const isConstant = (values) => {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length === 0 || (known.length === values.length && known.every((value) => value === known[0]) && values.length > 1);
};

class RunTable {
  constructor(model, open, set) {
    Object.assign(this, { model, open, set, page: 0, printing: false });
    this.head = element("tr");
    this.body = element("tbody");
    this.range = element("span", { class: "dsnb-range-shown" });
    this.back = element("button", { type: "button", onclick: () => this.turnPage(-1) }, "Previous");
    this.next = element("button", { type: "button", onclick: () => this.turnPage(1) }, "Next");
    this.save = element("button", { type: "button", onclick: () => saveCsv(fileName(this.model, "runs", "csv"), this.csv()) }, "Save as CSV");
    const table = element("table", {}, element("caption", {}, "The selected runs"), element("thead", {}, this.head), this.body);
    this.boxes = this.picker();
    this.node = element(
      "div", { class: "dsnb-later" },
      element("div", { class: "dsnb-scroll dsnb-runs", tabindex: "0", role: "region", "aria-label": "The selected runs" }, table),
      element("div", { class: "dsnb-bar" }, this.back, this.range, this.next, this.save),
      this.boxes.node,
    );
  }

  heading(name) {
    return { experiment: "experiment", repeat: "repeat", headroom: "GPU memory left (%)" }[name] ?? this.model.heading(name);
  }

  isNumber(name) {
    return !this.model.axis.has(name) && name !== "experiment";
  }

  // One figure of every run; NaN where it is missing.
  values(name, run) {
    if (name === "experiment") return this.model.experiments.codes[run];
    if (name === "repeat") return this.model.repeats[run] ?? NaN;
    if (name === "headroom") return 100 * this.model.memory.headroom(run);
    return (this.cached[name] ??= this.model.values(name, this.state))[run];
  }

  text(name, run) {
    const value = this.values(name, run);
    if (name === "repeat") return String(this.model.repeats[run] ?? "");
    if (name === "headroom") return Number.isNaN(value) ? "" : value.toFixed(0);
    return this.model.cellText(name, run, this.state);
  }

  // Without a choice, all columns in which the runs of the task differ.
  shownColumns() {
    if (this.state.columns.length) return tableColumns(this.model).filter((name) => this.state.columns.includes(name));
    const { task } = this.state;
    if (this.varying?.task !== task) {
      const runs = this.model.runsOf(this.model.task(this.state));
      const columns = tableColumns(this.model).filter((name) => !isConstant(runs.map((run) => this.values(name, run))));
      this.varying = { task, columns };
    }
    return this.varying.columns;
  }

  picker() {
    const inputs = new Map(tableColumns(this.model).map((name) => [name, element("input", { type: "checkbox", onchange: () => this.pick() })]));
    const labels = [...inputs].map(([name, input]) => element("label", { class: "dsnb-tick" }, input, this.heading(name)));
    const usual = element("button", { type: "button", onclick: () => this.set({ columns: [] }) }, "Usual columns");
    const node = element("details", { class: "dsnb-more" }, element("summary", {}, "Columns"), element("div", { class: "dsnb-ticks" }, ...labels), usual);
    return { inputs, node };
  }

  pick() {
    this.set({ columns: [...this.boxes.inputs].filter(([, input]) => input.checked).map(([name]) => name) });
  }

  show(runs, state) {
    [this.runs, this.state, this.page, this.cached] = [runs, state, 0, {}];
    const columns = this.shownColumns();
    for (const [name, input] of this.boxes.inputs) input.checked = columns.includes(name);
    this.headers = ["experiment", ...columns].map((name) => {
      const direction = state.sort?.[0] === name ? state.sort[1] : "none";
      const button = element("button", { type: "button", onclick: () => this.sortBy(name) }, this.heading(name));
      return element("th", { scope: "col", "aria-sort": direction, class: this.isNumber(name) ? null : "dsnb-text", "data-name": name }, button);
    });
    const focused = this.head.contains(document.activeElement) ? document.activeElement.closest("th").dataset.name : null;
    this.head.replaceChildren(...this.headers);
    if (focused) this.head.querySelector(`th[data-name="${focused}"] button`)?.focus();
    this.draw();
  }

  turnPage(pages) {
    this.page += pages;
    this.draw();
  }

  sortBy(name) {
    const [before, direction] = this.state.sort ?? [];
    const first = this.model.figure.has(name) ? "descending" : "ascending";
    const other = direction === "ascending" ? "descending" : "ascending";
    this.set({ sort: [name, before === name ? other : first] });
  }

  // The runs in the order of the table; settings sort in the order of their values.
  sorted() {
    if (!this.state.sort) return this.runs;
    const [name, direction] = this.state.sort;
    const sign = direction === "descending" ? -1 : 1;
    const keyed = this.runs.map((run) => [this.values(name, run), run]);
    const missing = ([key]) => Number(Number.isNaN(key));
    keyed.sort((a, b) => missing(a) - missing(b) || sign * (a[0] - b[0]) || a[1] - b[1]);
    return keyed.map(([, run]) => run);
  }

  // For each figure: the largest value, and the best if one direction is better and the runs differ.
  ranges() {
    return new Map(this.shownColumns().filter((name) => this.model.figure.has(name)).map((name) => {
      let [low, high] = [Infinity, -Infinity];
      for (const run of this.runs) {
        const value = this.values(name, run);
        if (value < low) low = value;
        if (value > high) high = value;
      }
      const better = this.model.better(name);
      return [name, { low, high, best: !better || low === high ? NaN : better === "higher" ? high : low }];
    }));
  }

  draw() {
    const sorted = this.sorted();
    const size = this.printing ? Math.max(sorted.length, 1) : ROWS_PER_PAGE;
    const pages = Math.max(1, Math.ceil(sorted.length / size));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const ranges = this.ranges();
    this.body.replaceChildren(...sorted.slice(this.page * size, (this.page + 1) * size).map((run) => this.row(run, ranges)));
    this.range.textContent = `${sorted.length ? this.page * size + 1 : 0} to ${Math.min((this.page + 1) * size, sorted.length)} of ${sorted.length}`;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.save.disabled = sorted.length === 0;
  }

  row(run, ranges) {
    const { model } = this;
    const name = model.experiments.names[model.experiments.codes[run]];
    const button = element("button", { type: "button", class: "dsnb-link", onclick: () => this.open(run), title: `${name}: show this run's steps` }, name);
    const cells = this.shownColumns().map((column) => this.cell(column, run, ranges.get(column)));
    return element("tr", {}, element("th", { scope: "row" }, button), ...cells);
  }

  // A figure has a bar from 0 to its share of the largest; the best one is marked.
  cell(name, run, range) {
    const bad = name === "status" && !this.model.ok[run];
    const value = this.values(name, run);
    const best = range && value === range.best;
    const classes = [bad && "dsnb-bad", !this.isNumber(name) && "dsnb-text", best && "dsnb-best", range && range.low >= 0 && "dsnb-filled"];
    const node = element("td", { class: classes.filter(Boolean).join(" ") || null, title: best ? "best of the selected runs" : null }, this.text(name, run));
    if (range && range.low >= 0 && range.high > 0 && !Number.isNaN(value)) node.style.setProperty("--share", value / range.high);
    return node;
  }

  // All rows while the page is printed.
  print(printing) {
    this.printing = printing;
    if (this.runs) this.draw();
  }

  // All selected runs in table order, all columns, headings with units, numbers in those units as precise as the page has
  // them; then the settings that are the same for all.
  csv() {
    const { model } = this;
    const constants = Object.entries(model.constants);
    const columns = ["repeat", "headroom", ...model.axes.map(({ name }) => name), ...model.figures.map(({ name }) => name)];
    const lines = [["experiment", ...columns.map((name) => this.heading(name)), "cause", ...constants.map(([name]) => name)]];
    for (const run of this.sorted()) {
      const values = columns.map((name) => {
        const axis = model.axis.get(name);
        if (axis) return axis.values[axis.codes[run]];
        return name === "repeat" ? model.repeats[run] : name === "headroom" ? this.values(name, run) : model.displayed(name, this.values(name, run));
      });
      lines.push([model.experiments.names[model.experiments.codes[run]], ...values, model.causes[run] ?? "", ...constants.map(([, value]) => value)]);
    }
    return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }
}
