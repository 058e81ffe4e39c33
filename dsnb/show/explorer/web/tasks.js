// The answers to all tasks as one table: sortable, searchable, saved as CSV. A row opens its task.

class TaskTable {
  constructor(model, open) {
    Object.assign(this, { model, open, sort: null });
    this.search = element("input", { type: "search", oninput: () => this.draw() });
    this.count = element("span", { role: "status" });
    const save = button("Save as CSV", () => saveCsv("tasks", this.lines(), model.formula));
    const scroll = scrollTable("All tasks", [], [], "dsnb-runs dsnb-all-tasks");
    [this.head, this.body] = scroll.querySelectorAll("thead tr, tbody");
    this.node = card("All tasks", box("dsnb-bar", field("Search", this.search), this.count, save), scroll);
  }

  // { name, title, value(row) to sort by, text(row), isText }: numbers as they are, NaN if missing.
  columns() {
    const { model } = this;
    const [rate] = model.medianFigures;
    const isOfAll = rate === "tokens_per_s";
    const kinds = new Set(this.rows.map(({ best }) => best?.kind).filter(Boolean));
    const unit = `${model.unit}s`;
    const number = (name, title, value, text) => ({ name, title, value: (row) => value(row) ?? NaN, text: (row) => (value(row) > 0 ? text(value(row)) : "") });
    const words = (name, title, text) => ({ name, title, isText: true, value: (row) => text(row) || NaN, text });
    const opener = ({ task }) => button(task.name || task.title, () => this.open(task.title), { class: "dsnb-link" });
    return [
      { ...words("model", "model", ({ task }) => task.name || task.title), text: opener },
      number("length", "sequence", ({ task }) => task.length, (length) => fixed(length, 0)),
      words("setting", "setting", ({ setting }) => setting),
      kinds.size > 1 ? words("place", "on", ({ best }) => best?.place ?? "") : number("gpus", unit, ({ best }) => best?.gpus, (gpus) => fixed(gpus, 0)),
      number("rate", model.figure.get(rate)?.heading ?? "tokens/s", ({ best }) => best && best.rate / (isOfAll ? 1 : best.gpus), (value) => significant(value)),
      number("mfu", "MFU (%)", ({ mfu }) => mfu, (mfu) => model.number("mfu", mfu)),
      number("memory", "memory (GiB)", ({ best }) => best?.memory, (gib) => significant(gib)),
      number("n", "n", ({ best }) => best?.n, (n) => n),
      words("basis", "basis", ({ best }) => best?.basis ?? ""),
    ];
  }

  // The best setting of a task: measured, otherwise predicted; without any, why there is none.
  row(task, state) {
    const { model } = this;
    const answer = new Answer(model, task, { ...state, task: task.title });
    const { best } = answer;
    if (best) return { task, best, setting: best.setting || model.experiments.names[best.experiment], mfu: model.figure.has("mfu") ? model.spread("mfu", best.experiment, state).median : NaN };
    const predicted = model.predictions.best(answer);
    return predicted ? { task, best: predicted, setting: predicted.setting } : { task, setting: answer.whyNot() };
  }

  show(state) {
    this.rows = this.model.tasks.map((task) => this.row(task, state));
    this.draw();
  }

  draw() {
    const { model, rows, sort } = this;
    this.shown = this.columns();
    showHeads(this.head, this.shown, sort, (name) => this.sortBy(name));
    const simple = (text) => text.toLowerCase().replaceAll(",", "");
    const wanted = simple(this.search.value).split(/\s+/);
    const has = (row) => {
      const text = simple(this.shown.map((column) => this.plain(column, row)).join(" "));
      return wanted.every((word) => text.includes(word));
    };
    this.items = this.sorted(rows.filter(has));
    const advised = this.items.filter((row) => !this.isLast(row));
    const last = this.items.filter((row) => this.isLast(row));
    const line = (row) => itemRow(this.shown, row, { onclick: ({ target }) => target.closest("button") || this.open(row.task.title) });
    const note = element("tr", {}, element("td", { class: "dsnb-text dsnb-soft", colspan: this.shown.length }, model.words.few));
    this.body.replaceChildren(...advised.map(line), ...(last.length ? [note] : []), ...last.map(line));
    this.count.textContent = `${this.items.length} of ${count(rows.length, "task")}`;
  }

  plain({ text, value, isText }, row) {
    return isText ? value(row) || "" : text(row);
  }

  // Tasks without advice are last, however the others are sorted.
  isLast({ task, best }) {
    return Boolean(task.few) || !best;
  }

  sorted(rows) {
    if (!this.sort) return rows;
    const [name, direction] = this.sort;
    const { value } = this.shown.find((column) => column.name === name);
    const sign = direction === "descending" ? -1 : 1;
    const isMissing = (key) => Number(Number.isNaN(key));
    const compare = (a, b) => (typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : a - b);
    const keyed = rows.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => isMissing(a) - isMissing(b) || sign * compare(a, b) || 0);
    return keyed.map(([, row]) => row);
  }

  sortBy(name) {
    const { isText } = this.shown.find((column) => column.name === name);
    const [before, direction] = this.sort ?? [];
    const first = isText ? "ascending" : "descending";
    const other = direction === "ascending" ? "descending" : "ascending";
    this.sort = [name, before === name ? other : first];
    this.draw();
  }

  lines() {
    return [this.shown.map(({ title }) => title), ...this.items.map((row) => this.shown.map((column) => this.plain(column, row)))];
  }
}
