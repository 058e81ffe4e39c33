// The tables beside the charts: runs (sortable, saved as CSV), effects of one change, the Pareto front, the legend.

const ROWS_PER_PAGE = 25;

class RunTable {
  constructor(model, open) {
    Object.assign(this, { model, open, sort: null, descending: false, page: 0 });
    this.columns = [
      ...model.axes.map((axis) => ({ name: axis.name, heading: axis.title })),
      ...model.figures.map((figure) => ({ name: figure.name, heading: figure.heading, number: true })),
    ];
    this.head = element("tr");
    this.body = element("tbody");
    this.range = element("span", { class: "dsnb-range-shown" });
    this.back = element("button", { type: "button", onclick: () => this.turnPage(-1) }, "Previous");
    this.next = element("button", { type: "button", onclick: () => this.turnPage(1) }, "Next");
    this.save = element("button", { type: "button", onclick: () => download("runs.csv", this.csv()) }, "Save as CSV");
    const table = element("table", {}, element("caption", {}, "The selected runs"), element("thead", {}, this.head), this.body);
    this.node = element(
      "div", {},
      element("div", { class: "dsnb-scroll", tabindex: "0", role: "region", "aria-label": "The selected runs" }, table),
      element("div", { class: "dsnb-bar" }, this.back, this.range, this.next, this.save),
    );
    this.headers = [{ name: "experiment", heading: "experiment" }, { name: "repeat", heading: "repeat", number: true }, ...this.columns];
    for (const column of this.headers) {
      column.button = element("button", { type: "button", onclick: () => this.sortBy(column.name) }, column.heading);
      column.th = element("th", { scope: "col", "aria-sort": "none", class: column.number ? null : "dsnb-text" }, column.button);
      this.head.append(column.th);
    }
  }

  show(runs, state) {
    [this.runs, this.state, this.page] = [runs, state, 0];
    this.draw();
  }

  turnPage(pages) {
    this.page += pages;
    this.draw();
  }

  sortBy(name) {
    this.descending = this.sort === name ? !this.descending : this.model.figure.has(name);
    this.sort = name;
    this.page = 0;
    this.draw();
  }

  // The sort key of a run; settings sort in the order of their values.
  key(run) {
    if (this.sort === "experiment") return this.model.experiments.codes[run];
    if (this.sort === "repeat") return this.model.repeats[run] ?? NaN;
    return this.model.values(this.sort, this.state)[run];
  }

  sorted() {
    if (!this.sort) return this.runs;
    const sign = this.descending ? -1 : 1;
    const keyed = this.runs.map((run) => [this.key(run), run]);
    const missing = ([key]) => Number(Number.isNaN(key));
    keyed.sort((a, b) => missing(a) - missing(b) || sign * (a[0] - b[0]) || a[1] - b[1]);
    return keyed.map(([, run]) => run);
  }

  draw() {
    const { model } = this;
    const sorted = this.sorted();
    const pages = Math.max(1, Math.ceil(sorted.length / ROWS_PER_PAGE));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    for (const { name, th } of this.headers) {
      th.setAttribute("aria-sort", name !== this.sort ? "none" : this.descending ? "descending" : "ascending");
    }
    this.body.replaceChildren(...sorted.slice(this.page * ROWS_PER_PAGE, (this.page + 1) * ROWS_PER_PAGE).map((run) => this.row(run)));
    this.range.textContent = `${sorted.length ? this.page * ROWS_PER_PAGE + 1 : 0} to ${Math.min((this.page + 1) * ROWS_PER_PAGE, sorted.length)} of ${sorted.length}`;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.save.disabled = sorted.length === 0;
  }

  row(run) {
    const { model } = this;
    const name = model.experiments.names[model.experiments.codes[run]];
    const button = element("button", { type: "button", class: "dsnb-link", onclick: () => this.open(run), title: "Show this run's steps" }, name);
    const cells = this.columns.map(({ name: column, number }) => {
      const bad = column === "status" && !model.ok[run];
      return element("td", { class: bad ? "dsnb-text dsnb-bad" : number ? null : "dsnb-text" }, model.cellText(column, run, this.state));
    });
    return element("tr", {}, element("th", { scope: "row" }, button), element("td", {}, String(model.repeats[run] ?? "")), ...cells);
  }

  // All selected runs in table order, headings with units, numbers in those units; then the settings that are the same for all.
  csv() {
    const { model } = this;
    const constants = Object.entries(model.constants);
    const lines = [[...this.headers.map((column) => column.heading), "cause", ...constants.map(([name]) => name)]];
    for (const run of this.sorted()) {
      const values = this.columns.map(({ name }) => {
        const axis = model.axis.get(name);
        return axis ? axis.values[axis.codes[run]] : model.displayed(name, model.values(name, this.state)[run]);
      });
      lines.push([model.experiments.names[model.experiments.codes[run]], model.repeats[run], ...values, model.causes[run] ?? "", ...constants.map(([, value]) => value)]);
    }
    return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }
}

// The effect of changing one setting on these figures.
const effectTable = (model, effects, metrics) => {
  if (!effects.length) return element("p", { class: "dsnb-empty" }, "No selected experiment differs from the baseline in exactly one setting.");
  const head = ["change", ...metrics.map((name) => model.title(name))];
  const rows = effects.map((effect) => {
    const axis = model.axis.get(effect.axis);
    const text = `${axis.title}: ${axis.labels[effect.before]} → ${axis.labels[effect.after]}`;
    const failed = effect.runs.filter((run) => !model.ok[run]);
    const statuses = [...new Set(failed.map((run) => model.status.labels[model.status.codes[run]]))].join(", ");
    const note = failed.length ? element("span", { class: "dsnb-bad" }, ` ${failed.length} of ${effect.runs.length} ${statuses}`) : null;
    return element("tr", {}, element("th", { scope: "row" }, text, note), ...metrics.map((name, index) => changeCell(model, name, effect.changes[index])));
  });
  const top = element("tr", {}, ...head.map((name, index) => element("th", { scope: "col", class: index ? null : "dsnb-text" }, name)));
  const table = element("table", {}, element("caption", {}, "Effect of one change"), element("thead", {}, top), element("tbody", {}, ...rows));
  const box = element("div", { class: "dsnb-scroll", tabindex: "0", role: "region", "aria-label": "Effect of one change" }, table);
  return element("div", {}, box, verdictNotes(model, effects));
};

// The Pareto front as a list, numbered as its points are in the chart.
const frontList = (model, front, state) => {
  const reason = model.figures.length ? "choose two different metrics for which higher or lower is better." : "nothing was measured.";
  if (!front.length) return element("p", { class: "dsnb-soft" }, `No Pareto front: ${reason}`);
  const items = front.map((point) => {
    const figures = `${model.labelled(state.y, point.y)}, ${model.labelled(state.x, point.x)}`;
    return element("li", {}, element("strong", {}, model.short[point.experiment]), `: ${figures}`);
  });
  return element("ol", {}, ...items);
};

// The values of the setting that is chosen for colour, and the marks of runs that are not ok.
const legend = (model, state, runs) => {
  const axis = model.axis.get(state.colour);
  const present = new Set(runs.map((run) => axis.codes[run]));
  const items = axis.labels.flatMap((label, code) => (present.has(code) ? [element("li", {}, mark(axis.shapes[code], axis.colours[code]), label)] : []));
  const failed = new Set(runs.filter((run) => !model.ok[run]).map((run) => model.status.codes[run]));
  const statuses = [...failed].sort((a, b) => a - b).map((code) => element("li", {}, mark("cross", model.status.colours[code]), `not ok: ${model.status.labels[code]} (at the bottom)`));
  return [element("li", { class: "dsnb-soft" }, `${axis.title}:`), ...items, ...statuses];
};
