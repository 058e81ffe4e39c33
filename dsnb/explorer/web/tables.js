// The tables beside the charts: runs (sortable, to be saved as CSV), what one change costs, the front, the legend.

const ROWS = 25;

class RunTable {
  constructor(model, open) {
    Object.assign(this, { model, open, sort: null, descending: false, page: 0 });
    this.columns = [
      ...model.axes.map((axis) => ({ name: axis.name, heading: axis.title })),
      ...model.figures.map((figure) => ({ name: figure.name, heading: figure.heading, number: true })),
    ];
    this.head = element("tr");
    this.body = element("tbody");
    this.where = element("span", { class: "dsnb-where" });
    this.back = element("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.next = element("button", { type: "button", onclick: () => this.turn(1) }, "Next");
    this.save = element("button", { type: "button", onclick: () => download("runs.csv", this.csv()) }, "Save as CSV");
    const table = element("table", {}, element("caption", {}, "The selected runs"), element("thead", {}, this.head), this.body);
    this.node = element(
      "div", {},
      element("div", { class: "dsnb-scroll", tabindex: "0", role: "region", "aria-label": "The selected runs" }, table),
      element("div", { class: "dsnb-bar" }, this.back, this.where, this.next, this.save),
    );
    this.heads = [{ name: "experiment", heading: "experiment" }, { name: "repeat", heading: "repeat", number: true }, ...this.columns];
    for (const column of this.heads) {
      column.button = element("button", { type: "button", onclick: () => this.order(column.name) }, column.heading);
      column.th = element("th", { scope: "col", "aria-sort": "none", class: column.number ? null : "dsnb-text" }, column.button);
      this.head.append(column.th);
    }
  }

  show(runs, state) {
    [this.runs, this.state, this.page] = [runs, state, 0];
    this.draw();
  }

  turn(pages) {
    this.page += pages;
    this.draw();
  }

  order(name) {
    this.descending = this.sort === name ? !this.descending : this.model.figure.has(name);
    this.sort = name;
    this.page = 0;
    this.draw();
  }

  // The key of a run in the order that is chosen; settings sort by their values' own order.
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
    const pages = Math.max(1, Math.ceil(sorted.length / ROWS));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    for (const { name, th } of this.heads) {
      th.setAttribute("aria-sort", name !== this.sort ? "none" : this.descending ? "descending" : "ascending");
    }
    this.body.replaceChildren(...sorted.slice(this.page * ROWS, (this.page + 1) * ROWS).map((run) => this.row(run)));
    this.where.textContent = `${sorted.length ? this.page * ROWS + 1 : 0} to ${Math.min((this.page + 1) * ROWS, sorted.length)} of ${sorted.length}`;
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
      return element("td", { class: bad ? "dsnb-text dsnb-bad" : number ? null : "dsnb-text" }, model.shown(column, run, this.state));
    });
    return element("tr", {}, element("th", { scope: "row" }, button), element("td", {}, String(model.repeats[run] ?? "")), ...cells);
  }

  // All selected runs in the order shown, headings with units, numbers as the page has them; then what is the same for all.
  csv() {
    const { model } = this;
    const same = Object.entries(model.constants);
    const lines = [[...this.heads.map((column) => column.heading), "cause", ...same.map(([name]) => name)]];
    for (const run of this.sorted()) {
      const values = this.columns.map(({ name }) => {
        const axis = model.axis.get(name);
        return axis ? axis.values[axis.codes[run]] : model.values(name, this.state)[run];
      });
      lines.push([model.experiments.names[model.experiments.codes[run]], model.repeats[run], ...values, model.causes[run] ?? "", ...same.map(([, value]) => value)]);
    }
    return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }
}

const NOTHING = 0.0005; // shares that would be shown as 0.0 %

const percent = (value) => {
  if (Math.abs(value) < NOTHING) return "0 %";
  return `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)} %`;
};

// A change as text with a bar whose colour says whether it is for the better; a change within the noise has none.
const changeCell = (model, name, { change, beyond }) => {
  if (Number.isNaN(change)) return element("td", {}, "");
  const good = (change > 0) === (model.better(name) === "higher");
  const kind = !model.better(name) || beyond === false || Math.abs(change) < NOTHING ? "dsnb-same" : good ? "dsnb-better" : "dsnb-worse";
  const bar = element("span", { class: `dsnb-change ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.min(Math.abs(change), 1));
  const said = Math.abs(change) < NOTHING ? "the same" : beyond === null ? "noise unknown" : beyond ? "more than noise" : "within noise";
  return element("td", {}, element("span", { class: "dsnb-figure" }, percent(change)), bar, element("span", { class: "dsnb-said" }, said));
};

// What changing one setting alone does to these figures.
const costTable = (model, effects, metrics) => {
  if (!effects.length) return element("p", { class: "dsnb-empty" }, "No selected experiment differs from this one in a single setting.");
  const head = ["change", ...metrics.map((name) => model.title(name))];
  const rows = effects.map((effect) => {
    const axis = model.axis.get(effect.axis);
    const text = `${axis.title}: ${axis.labels[effect.before]} → ${axis.labels[effect.after]}`;
    const lost = effect.runs.filter((run) => !model.ok[run]);
    const statuses = [...new Set(lost.map((run) => model.status.labels[model.status.codes[run]]))].join(", ");
    const note = lost.length ? element("span", { class: "dsnb-bad" }, ` ${lost.length} of ${effect.runs.length} ${statuses}`) : null;
    return element("tr", {}, element("th", { scope: "row" }, text, note), ...metrics.map((name, index) => changeCell(model, name, effect.changes[index])));
  });
  const top = element("tr", {}, ...head.map((name, index) => element("th", { scope: "col", class: index ? null : "dsnb-text" }, name)));
  const table = element("table", {}, element("caption", {}, "What one change costs"), element("thead", {}, top), element("tbody", {}, ...rows));
  return element("div", { class: "dsnb-scroll", tabindex: "0", role: "region", "aria-label": "What one change costs" }, table);
};

// The front in words, with the numbers that the chart gives its points.
const frontList = (model, front, state) => {
  const why = model.figures.length ? "choose two different figures of which more or less is better." : "no figure was measured.";
  if (!front.length) return element("p", { class: "dsnb-soft" }, `No front: ${why}`);
  const items = front.map((point) => {
    const figures = `${model.measured(state.y, point.y)}, ${model.measured(state.x, point.x)}`;
    return element("li", {}, element("strong", {}, model.short[point.experiment]), `: ${figures}`);
  });
  return element("ol", {}, ...items);
};

// The values of the axis that is chosen for colour, and how runs that are not ok are drawn.
const legend = (model, state, kept) => {
  const axis = model.axis.get(state.colour);
  const there = new Set(kept.map((run) => axis.codes[run]));
  const items = axis.labels.flatMap((label, code) => (there.has(code) ? [element("li", {}, mark(axis.shapes[code], axis.colours[code]), label)] : []));
  const lost = new Set(kept.filter((run) => !model.ok[run]).map((run) => model.status.codes[run]));
  const statuses = [...lost].sort((a, b) => a - b).map((code) => element("li", {}, mark("cross", model.status.colours[code]), `not ok: ${model.status.labels[code]} (at the bottom)`));
  return [element("li", { class: "dsnb-soft" }, `${axis.title}:`), ...items, ...statuses];
};
