// The tables: medians and runs, effects of one change, the Pareto front, two pinned settings or runs side by side.

const ROWS_PER_PAGE = 20;

// Whether a column says the same of all runs, or nothing.
const isConstant = (values) => (values.length > 1 && values.every((value) => value === values[0])) || values.every(Number.isNaN);

// The heads of columns, which sort their table; the one that has the focus keeps it.
const showHeads = (head, columns, sort, sortBy) => {
  const focused = head.contains(document.activeElement) ? document.activeElement.closest("th").dataset.name : null;
  head.replaceChildren(...columns.map(({ name, title, isText, isMinor }) => {
    const direction = sort?.[0] === name ? sort[1] : "none";
    const attributes = { scope: "col", "aria-sort": direction, class: isText ? "dsnb-text" : isMinor ? "dsnb-unprinted" : null, "data-name": name };
    return element("th", attributes, button(title, () => sortBy(name)));
  }));
  if (focused) head.querySelector(`th[data-name="${focused}"] button`)?.focus();
};

// A row of columns about an item; the first one is its head.
const itemRow = (columns, item, attributes = {}) => element("tr", attributes, ...columns.map(({ text, isText, isMinor, isBad }, index) => {
  const classes = [isText && "dsnb-text", isMinor && "dsnb-unprinted", isBad?.(item) && "dsnb-bad"].filter(Boolean).join(" ");
  return element(index ? "td" : "th", { scope: index ? null : "row", class: classes || null }, text(item));
}));

// The medians of the selected settings, or the runs behind them: sortable, in pages, saved as CSV.
class RunTable {
  constructor(model, open, set) {
    Object.assign(this, { model, open, set });
    const scroll = scrollTable("The selected runs", [], [], "dsnb-runs");
    [this.head, this.body] = scroll.querySelectorAll("thead tr, tbody");
    const views = { medians: "Medians", runs: "Runs" };
    const choice = ([view, title]) => button(title, () => set({ table: view }), { "data-view": view });
    this.switches = Object.entries(views).map(choice);
    this.range = element("span", { class: "dsnb-range-shown" });
    this.back = button("Previous", () => this.drawPage(this.page - 1));
    this.next = button("Next", () => this.drawPage(this.page + 1));
    this.save = button("Save as CSV", () => saveCsv(this.view, this.lines(), model.formula));
    const group = { class: "dsnb-bar dsnb-switch", role: "group", "aria-label": "Rows" };
    const pages = box("dsnb-bar", this.back, this.range, this.next, this.save);
    this.node = box("dsnb-later", element("div", group, this.switches), scroll, pages);
    const byName = (columns) => new Map(columns.map((column) => [column.name, { file: column.value, ...column }]));
    this.views = { medians: byName(this.columnsOf(model, true)), runs: byName(this.columnsOf(model, false)) };
  }

  // All columns of runs or settings, figures before settings: { name, title, value(item), text(item), file(item), isText, isMinor, isBad(item) }.
  // `value` is a number to sort by, NaN if it is missing. Of a setting, they are medians over all of its ok runs and the spread of its tokens/s as
  // the answer states it.
  columnsOf(model, areSettings) {
    const { codes, names } = model.experiments;
    const code = (item) => (areSettings ? item : codes[item]);
    const name = (item) => names[code(item)];
    const runs = (item) => (areSettings ? model.whole.get(item) : [item]);
    const text = (item) => (areSettings ? model.short[item] : name(item));
    const hint = `show its ${areSettings ? "first run" : "steps"}`;
    const link = (item) => ({ class: "dsnb-link", title: `${name(item)}: ${hint}` });
    const opener = (item) => button(text(item), () => this.open(runs(item)[0]), link(item));
    const bad = (experiment) => model.notOk(runs(experiment));
    const good = (experiment) => runs(experiment).length - bad(experiment);
    const spread = (experiment) => model.candidates.get(experiment)?.spread ?? NaN;
    const headroom = (run) => 100 * model.headroom(run);
    const rounded = (value, places) => (Number.isNaN(value) ? "" : fixed(value, places).replace(/^0\.0$/, "<0.1"));
    const leading = areSettings ? [
      { name: "n", title: "n", value: good, text: good },
      { name: "failed", title: "not ok", isMinor: true, value: bad, text: (experiment) => bad(experiment) || "", isBad: bad },
      { name: "spread", title: "spread (%)", value: spread, text: (experiment) => rounded(spread(experiment), 1), isBad: (experiment) => model.isUnstable(experiment) },
    ] : [
      { name: "repeat", title: "repeat", value: (run) => model.repeats[run] ?? NaN, text: (run) => model.repeats[run] ?? "" },
      { name: "headroom", title: "GPU memory left (%)", value: headroom, text: (run) => rounded(headroom(run), 0) },
      { name: "cause", title: "cause", value: () => NaN, file: (run) => model.causes[run] ?? "" },
    ];
    const figures = model.figures.map(({ name: figure, heading: title }) => {
      const median = (item) => model.spread(figure, item, this.state).median;
      const value = areSettings ? median : (item) => model.values(figure, this.state)[item];
      const isMinor = areSettings && model.unprinted.includes(figure);
      const text = (item) => model.number(figure, value(item));
      const file = (item) => model.displayed(figure, value(item));
      return { name: figure, title, isMinor, value, text, file };
    });
    const axes = areSettings ? model.experimentAxes.map((axis) => model.axis.get(axis)) : model.axes;
    const settings = axes.map(({ name: axis, title, codes: ofRuns, labels, values }) => {
      const value = (item) => ofRuns[runs(item)[0]];
      const isBad = (item) => axis === "status" && !model.ok[item];
      const text = (item) => labels[value(item)];
      return { name: axis, title, isText: true, value, text, file: (item) => values[value(item)], isBad };
    });
    const title = areSettings ? "setting" : "experiment";
    const experiment = { name: "experiment", title, isText: true, value: code, text: opener, file: name };
    return [experiment, ...leading, ...figures, ...settings];
  }

  // The columns of the medians that were measured, or those in which the runs of the task differ.
  shownColumns() {
    const { model, state, view } = this;
    if (this.shown?.task !== state.task || this.shown.view !== view) {
      const runs = model.runsOf(model.task(state));
      const measured = model.measured(runs, state).map(({ name }) => name);
      const figures = model.medianFigures.filter((name) => measured.includes(name));
      const last = figures.length ? ["spread"] : [];
      const medians = ["experiment", "n", "failed", ...figures, ...last];
      const differ = ({ name, value }) => name === "experiment" || !isConstant(runs.map(value));
      const shown = [...this.known.values()].filter(({ name }) => !model.otherSpeeds.includes(name));
      const columns = view === "medians" ? medians.map((name) => this.known.get(name)) : shown.filter(differ);
      this.shown = { task: state.task, view, columns };
    }
    return this.shown.columns;
  }

  show(runs, groups, state) {
    Object.assign(this, { state, view: state.table, known: this.views[state.table] });
    this.node.classList.toggle("dsnb-medians", this.view === "medians");
    for (const one of this.switches) one.setAttribute("aria-pressed", String(one.dataset.view === this.view));
    showHeads(this.head, this.shownColumns(), state.sort, (name) => this.sortBy(name));
    this.items = this.sorted(this.view === "medians" ? [...groups.keys()] : runs);
    this.drawPage(0);
  }

  drawPage(page) {
    const { items } = this;
    const [first, last] = [page * ROWS_PER_PAGE, Math.min((page + 1) * ROWS_PER_PAGE, items.length)];
    const columns = this.shownColumns();
    this.body.replaceChildren(...items.slice(first, last).map((item) => itemRow(columns, item)));
    this.page = page;
    this.range.textContent = `${items.length ? first + 1 : 0} to ${last} of ${items.length}`;
    this.back.disabled = page === 0;
    this.next.disabled = last >= items.length;
    this.save.disabled = items.length === 0;
  }

  // The lines of the file: all columns, numbers in the units of their headings as precise as the page has them; then the settings that are the
  // same for all.
  lines() {
    const constants = Object.entries(this.model.constants).map(([title, value]) => ({ title, file: () => value }));
    const columns = [...this.known.values(), ...constants];
    return [columns.map(({ title }) => title), ...this.items.map((item) => columns.map(({ file }) => file(item)))];
  }

  firstDirection(name) {
    return this.model.figure.has(name) && this.model.better(name) !== "lower" ? "descending" : "ascending";
  }

  sortBy(name) {
    const [before, direction] = this.state.sort ?? [];
    const other = direction === "ascending" ? "descending" : "ascending";
    this.set({ sort: [name, before === name ? other : this.firstDirection(name)] });
  }

  // Runs or settings in the order of the table: settings by their values. Medians begin with the fastest, and end with the unstable.
  sorted(items) {
    const { model, view, state: { sort }, known } = this;
    const isKnown = known.get(sort?.[0])?.value;
    if (!isKnown && (view === "runs" || !model.medianFigures.length)) return items;
    const [name, direction] = isKnown ? sort : [model.medianFigures[0], this.firstDirection(model.medianFigures[0])];
    const sign = direction === "descending" ? -1 : 1;
    const isLast = (key, item) => Number(Number.isNaN(key)) * 2 + Number(!isKnown && model.isUnstable(item));
    const keyed = items.map((item) => [known.get(name).value(item), item]);
    keyed.sort((a, b) => isLast(...a) - isLast(...b) || sign * (a[0] - b[0]) || a[1] - b[1]);
    return keyed.map(([, item]) => item);
  }
}

// A change, coloured by whether it is for the better; grey unless the verdict is that there is one.
const changeParts = (model, name, { values, text, verdict, reason, note, within }) => {
  if (!text) return note;
  const isBetter = (values[1] > values[0]) === (model.better(name) === "higher");
  const isKnown = model.better(name) && verdict === "likely";
  const colour = isBetter ? "dsnb-better" : "dsnb-bad";
  const timed = name.startsWith("tokens_per_s") || name === "step_time_mean_s"; // the figures that the steps' spread is about
  const said = verdict === "too few runs" ? "" : reason; // which is said once, of both settings
  const remarks = [said, joined([note, timed && within], "; ")].filter(Boolean);
  const figure = box(`dsnb-figure ${isKnown ? colour : "dsnb-soft"}`, text);
  return [figure, ...remarks.map((one) => box("dsnb-verdict", one))];
};

// A bar from no change to a change, and a line for its interval, as ratios: half and twice are equally long. `reach` is the largest ratio.
const changeBar = ({ change, low, high }, reach) => {
  const place = (ratio) => Math.min(Math.max(50 + (50 * Math.log1p(ratio)) / reach, 0), 100) || 0;
  const part = (style, from, to) => {
    const [left, right] = [Math.min(from, to), Math.max(from, to)];
    return element("span", { class: style, style: `left: ${left.toFixed(2)}%; width: ${(right - left).toFixed(2)}%` });
  };
  const bar = Number.isFinite(change) ? part("dsnb-part", 50, place(change)) : "";
  const line = Number.isFinite(low) && Number.isFinite(high) ? part("dsnb-interval", place(low), place(high)) : "";
  return box("dsnb-track", bar, line);
};

// The effect of changing one setting on these figures, what the verdicts rely on, and how many of them lack runs.
const effectTable = (model, effects, figures, relevance) => {
  if (!effects.length) return element("p", { class: "dsnb-empty" }, "No selected experiment differs from the baseline in exactly one setting.");
  const notes = soft(fill(model.words.method, { relevance: percent(relevance) }));
  const ends = effects.flatMap(({ changes: [{ change, low, high }] }) => [change, low, high]).map((ratio) => Math.abs(Math.log1p(ratio)));
  const reach = Math.max(0.01, ...ends.filter(Number.isFinite));
  const texts = effects.map(({ axis, before, after }) => `${axis.title}: ${axis.labels[before]} → ${axis.labels[after]}`);
  const rows = effects.map((effect, place) => {
    const isTwice = texts.indexOf(texts[place]) !== texts.lastIndexOf(texts[place]); // two sweeps measured the same setting
    const name = isTwice && box("dsnb-verdict", model.short[effect.experiment]);
    const bad = model.notOk(effect.runs);
    const note = bad ? element("span", { class: "dsnb-bad" }, ` ${bad} of ${effect.runs.length} not ok`) : "";
    const few = effect.changes.find(({ verdict }) => verdict === "too few runs");
    const runs = few ? box("dsnb-verdict", model.say("few.runs", few)) : "";
    const cells = figures.map((figure, index) => changeParts(model, figure, effect.changes[index]));
    return tableRow([texts[place], note, name, runs], [changeBar(effect.changes[0], reach), ...cells]);
  });
  const titles = figures.map((name) => model.named.get(name).title);
  const head = ["change", `${titles[0]}, bar and interval`, ...titles].map((title, index) => heading(title, index < 2));
  return element("div", {}, scrollTable("Effect of one change", head, rows, "dsnb-wrapped dsnb-effects"), notes);
};

// The Pareto front as a list, numbered as its points are in the chart.
const frontList = (model, front, state, pins) => {
  if (!front.length) return soft("No Pareto front: choose two different metrics that were measured and for which higher or lower is better.");
  const figure = (point, side) => `${model.named.get(state[side]).heading} ${model.number(state[side], point[side])}`;
  const items = front.map((point) => {
    const pin = pins.button(model.experiments.names[point.experiment], "Pin");
    return element("li", {}, element("strong", {}, model.short[point.experiment]), `: ${figure(point, "y")}, ${figure(point, "x")} `, pin);
  });
  return element("ol", {}, ...items);
};

// Two pinned settings or runs side by side. A pin is the name of an experiment, or the position of a run.
class Pins {
  constructor(model, set) {
    Object.assign(this, { model, set, pins: [] });
    this.table = element("div");
    this.note = soft("Pin a second setting or run to compare it with A.");
    const remove = button("Remove pins", () => set({ pins: [] }));
    this.node = card("A and B", this.table, this.note, box("dsnb-bar", remove));
  }

  // A button that pins an experiment or a run as A, then B, then in place of B; pressed again, it removes its pin.
  button(pin, label) {
    const press = () => this.set({ pins: this.pins.includes(pin) ? this.pins.filter((one) => one !== pin) : [...this.pins.slice(0, 1), pin] });
    return this.label(button(label, press, { "data-pin": JSON.stringify(pin), "data-label": label }));
  }

  // While one setting is pinned, the other buttons offer to compare with it.
  label(node) {
    const { pin, label } = node.dataset;
    const isPinned = this.pins.some((one) => JSON.stringify(one) === pin);
    node.textContent = isPinned ? "Pinned" : this.pins.length === 1 ? `${label} to compare with A` : label;
    node.setAttribute("aria-pressed", String(isPinned));
    return node;
  }

  show({ pins, ...state }) {
    const { model } = this;
    this.pins = pins;
    for (const node of this.node.closest(".dsnb-explorer").querySelectorAll("[data-pin]")) this.label(node);
    this.node.hidden = !pins.length;
    this.note.hidden = pins.length > 1;
    const { names, codes } = model.experiments;
    const settings = pins.map((pin) => (typeof pin === "string" ? names.indexOf(pin) : codes[pin]));
    const titles = pins.map((pin, side) => {
      const run = typeof pin === "string" ? "" : `run ${model.repeats[pin] ?? "?"}`;
      return `${"AB"[side]}: ${joined([model.short[settings[side]], run], ", ")}`;
    });
    this.table.replaceChildren(...(pins.length > 1 ? this.compare(pins, settings, titles, state) : titles));
  }

  // Settings that differ on top, then the figures that either of them measured.
  compare(pins, settings, titles, state) {
    const { model } = this;
    const arePairs = pins.every((pin) => typeof pin === "string");
    const runs = pins.map((pin, side) => (typeof pin === "string" ? model.whole.get(settings[side]) : [pin]));
    const codes = (axis) => runs.map(([run]) => axis.codes[run]);
    const differing = model.axes.filter((axis) => axis.name !== "status" && new Set(codes(axis)).size > 1);
    const figures = model.measured(runs.flat(), state).filter(({ name }) => !model.otherSpeeds.includes(name));
    const changes = new Map(figures.map(({ name }) => [
      name, arePairs ? compared(model, name, ...settings, state) : inWords(model, name, ofRuns(model, name, ...runs, state), state),
    ]));
    const few = [...changes.values()].find(({ verdict }) => verdict === "too few runs");
    const rows = [
      ...differing.map((axis) => tableRow(axis.title, [...codes(axis).map((code) => axis.labels[code]), ""], "dsnb-differs")),
      tableRow("runs that are ok", [...runs.map((own) => `${own.length - model.notOk(own)} of ${own.length}`), ""]),
      ...[...changes].map(([name, change]) => tableRow(model.named.get(name).heading, [...change.values.map((value) => model.number(name, value)), changeParts(model, name, change)])),
    ];
    const heads = ["figure", ...titles, "B against A"].map((title, place) => heading(title, !place));
    return [scrollTable("A and B", heads, rows, "dsnb-pins dsnb-wrapped"), soft(joined([few && model.say("few.note", few), model.words.values]))];
  }
}
