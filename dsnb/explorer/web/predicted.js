// Predicted settings that were not run: hollow marks beside the runs, a table of their own, what is worth measuring. They
// are no runs of the model, so that no count, median, front or answer includes them.

const MOST_PREDICTED_ROWS = 100;

class Predictions {
  constructor(model, payload) {
    const { figures = {}, errors = {}, names = [], notes = [], ...others } = payload ?? {};
    Object.assign(this, { tasks: [], codes: {}, fits: [], settings: [], kinds: [], gpus: [], outside: [], texts: [], ...others, model, names, notes });
    const numbers = (columns) => new Map(Object.entries(columns).map(([name, values]) => [name, values.map((value) => value ?? NaN)]));
    [this.figures, this.errors] = [numbers(figures), numbers(errors)];
  }

  // The predicted settings of the task that pass the filters.
  shown(state) {
    const { model } = this;
    const task = model.task(state);
    const isOfTask = (place) => task && (task === model.decision.allTasks || model.decision.tasks[this.tasks[place]] === task);
    const filters = model.axes.filter(({ name }) => state[name]?.length);
    const passes = (place) => filters.every((axis) => state[axis.name].includes(axis.values[this.codes[axis.name]?.[place]]));
    return [...this.names.keys()].filter((place) => isOfTask(place) && passes(place));
  }

  // The values of a setting among those that are shown.
  codesOf(axis, state) {
    const codes = this.codes[axis.name];
    return codes ? this.shown(state).map((place) => codes[place]) : [];
  }

  // One figure, its mean error in per cent, and the ends of the range that this gives.
  value(name, place, state) {
    if (this.model.axis.has(name)) return this.codes[name]?.[place] ?? NaN;
    if (name === "days") return state.train_tokens / this.value("tokens_per_s", place, state) / 86400;
    return this.figures.get(name)?.[place] ?? NaN;
  }

  error(name, place) {
    return this.errors.get(name === "days" ? "tokens_per_s" : name)?.[place] ?? NaN;
  }

  range(name, place, state) {
    const value = this.value(name, place, state);
    const factor = 1 + (this.model.axis.has(name) ? 0 : this.error(name, place)) / 100;
    return [value / factor, value * factor];
  }

  // Colour and shape, as of a run of this setting.
  style(place, state) {
    const axis = this.model.axis.get(state.colour);
    const code = this.codes[state.colour]?.[place];
    return code === undefined ? { fill: this.model.colours.predicted, shape: "circle" } : { fill: axis.colours[code], shape: axis.shapes[code] };
  }

  // What can be drawn on these axes: what fits, or may fit, and has both figures.
  drawn(state, names) {
    return this.shown(state).filter((place) => this.fits[place] !== false && names.every((name) => name && !Number.isNaN(this.value(name, place, state))));
  }

  scatter(state) {
    return this.drawn(state, [state.x, state.y]).map((place) => {
      const [[left, right], [low, high]] = [this.range(state.x, place, state), this.range(state.y, place, state)];
      const [x, y] = [this.value(state.x, place, state), this.value(state.y, place, state)];
      return { id: place, isPredicted: true, x, y, left, right, low, high, ...this.style(place, state) };
    });
  }

  // The same along a setting; `offset` is that of a value of the colour.
  medians(state, offset) {
    return this.drawn(state, [state.along, state.y]).map((place) => {
      const [low, high] = this.range(state.y, place, state);
      const x = this.value(state.along, place, state) + offset(this.codes[state.colour]?.[place] ?? 0);
      return { id: place, isPredicted: true, x, y: this.value(state.y, place, state), low, high, ...this.style(place, state) };
    });
  }

  legend(state) {
    return this.shown(state).length ? [{ label: "predicted, not run", shape: "circle", fill: this.model.colours.predicted, hollow: true }] : [];
  }

  // What hollow marks are, and which settings have none.
  note(state, marks) {
    const shown = this.shown(state);
    if (!shown.length) return "";
    const unfit = shown.filter((place) => this.fits[place] === false).length;
    const parts = [marks.length ? "Hollow marks are predicted, not run: their lines are ± the mean error of such predictions." : ""];
    const are = (number) => (number === 1 ? "is" : "are");
    if (unfit) parts.push(`${count(unfit, "predicted setting")} would not fit and ${are(unfit)} not drawn.`);
    const unknown = shown.length - unfit - marks.length;
    if (unknown) parts.push(`${count(unknown, "predicted setting")} ${are(unknown)} not drawn: not all of these figures are predicted.`);
    return parts.filter(Boolean).join(" ");
  }

  // A figure with its error, as in "76,700 ± 6.2 %".
  text(name, place, state) {
    const value = this.value(name, place, state);
    if (name === "days" && value > 0) return span(...this.range(name, place, state));
    return Number.isNaN(value) ? "" : `${this.model.number(name, value)} ± ${fixed(this.error(name, place), 1)} %`;
  }

  isFitting(place) {
    return { true: "yes", false: "no" }[this.fits[place]] ?? "unknown";
  }

  // The lines of the tooltip of a mark.
  describe(place, state) {
    const { model } = this;
    const figures = [...new Set([state.y, state.x])].filter((name) => name && !model.axis.has(name) && this.text(name, place, state));
    const said = figures.map((name) => `${model.heading(name)}: ${this.text(name, place, state)}`);
    const outside = this.texts[this.outside[place]];
    const lines = [this.names[place], "predicted, not run", this.settings[place], ...said, ...(outside ? [`less sure: ${outside}`] : [])];
    return lines.map((line) => (line.length > 160 ? `${line.slice(0, 159)}…` : line));
  }

  // The predicted setting that would beat the best measured one in what is to be least; empty without one.
  worthMeasuring(decision) {
    const { state, best } = decision;
    const fitting = this.shown({ task: state.task }).filter((place) => this.fits[place] !== false && (!state.gpus_at_hand || this.gpus[place] <= state.gpus_at_hand));
    const amounts = fitting.map((place) => [this.objective(place, decision), place]).filter(([amount]) => amount > 0);
    if (!amounts.length) return "";
    const [least, place] = amounts.reduce((one, other) => (other[0] < one[0] ? other : one));
    const own = best?.[OBJECTIVES[state.objective]];
    const figure = state.objective === "memory" ? "peak_allocated_gib" : "tokens_per_s";
    const name = state.objective === "memory" ? "memory (GiB)" : "tokens/s";
    const said = `${this.names[place]}, predicted and not measured: ${name} ${this.text(figure, place, state)}`;
    if (!best) return `Worth measuring first: ${said}.`;
    if (!(least < own)) return "";
    const gain = 100 * (1 - least / own);
    const what = { time: "less time", gpu_hours: "fewer GPU-hours", cost: "less cost", memory: "less memory" }[state.objective];
    const error = this.error(figure, place);
    const sure = gain > error ? "more than" : "within";
    return `Worth measuring: ${said}, ${significant(gain, 2)} % ${what} than the best measured setting, ${sure} the mean error of such predictions.`;
  }

  // What a training takes of what is to be least, with the memory that is the figure of the measured settings.
  objective(place, decision) {
    const { state } = decision;
    if (state.objective === "memory") return !decision.best || decision.memoryFigure === "peak_allocated_gib" ? this.value("peak_allocated_gib", place, state) : NaN;
    const days = this.value("days", place, state);
    return days * { time: 1, gpu_hours: this.gpus[place], cost: this.gpus[place] * (decision.price(this.kinds[place]) ?? NaN) }[state.objective];
  }

  // The card with the table; nothing without predictions.
  card() {
    if (!this.names.length && !this.notes.length) return null;
    this.head = element("tr");
    this.body = element("tbody");
    this.more = element("p", { class: "dsnb-soft" });
    this.save = element("button", { type: "button", onclick: () => saveCsv(fileName(this.model, "predicted", "csv"), this.csv(this.state)) }, "Save as CSV");
    const table = element("table", {}, element("caption", {}, "Predicted settings"), element("thead", {}, this.head), this.body);
    this.box = element("div", { class: "dsnb-scroll dsnb-runs", tabindex: "0", role: "region", "aria-label": "Predicted settings" }, table);
    const notes = this.notes.map((note) => element("p", { class: "dsnb-soft" }, note));
    return element("section", { class: "dsnb-card dsnb-predicted" }, element("h3", {}, "Predicted, not run"), ...notes, this.box, this.more, element("p", {}, this.save));
  }

  sorted(state) {
    const rate = (place) => this.value("tokens_per_s", place, state);
    return this.shown(state).sort((a, b) => (this.fits[a] === false) - (this.fits[b] === false) || rate(b) - rate(a));
  }

  // All predicted settings that are shown: how they are set, each figure in the units of its heading with its mean error.
  csv(state) {
    const { model } = this;
    const axes = model.axes.filter(({ name }) => this.codes[name]);
    const figures = [...this.figures.keys(), "days"].filter((name) => model.figure.has(name));
    const heads = figures.flatMap((name) => [model.heading(name), `${model.heading(name)}, mean error (%)`]);
    const lines = [["experiment", "status", "would fit", ...axes.map(({ name }) => model.heading(name)), ...heads, "less sure, because"]];
    for (const place of this.sorted(state)) {
      const values = figures.flatMap((name) => [model.displayed(name, this.value(name, place, state)), this.error(name, place)]);
      const set = axes.map((axis) => axis.values[this.codes[axis.name][place]]);
      lines.push([this.names[place], "predicted", this.isFitting(place), ...set, ...values, this.texts[this.outside[place]]]);
    }
    return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }

  // The fastest first; those that would not fit last.
  show(state) {
    if (!this.box) return;
    const { model } = this;
    this.state = state;
    const figures = ["tokens_per_s", "step_time_s", "peak_allocated_gib", "days"].filter((name) => model.figure.has(name) && (name === "days" || this.figures.has(name)));
    const titles = ["setting", "status", "would fit", ...figures.map((name) => model.heading(name)), "less sure, because"];
    this.head.replaceChildren(...titles.map((title, index) => element("th", { scope: "col", class: figures.length && index > 2 && index < titles.length - 1 ? null : "dsnb-text" }, title)));
    const sorted = this.sorted(state);
    this.body.replaceChildren(...sorted.slice(0, MOST_PREDICTED_ROWS).map((place) => this.row(place, figures, state)));
    this.box.hidden = this.save.hidden = !sorted.length;
    this.more.textContent = sorted.length > MOST_PREDICTED_ROWS ? `The fastest ${MOST_PREDICTED_ROWS} of ${sorted.length}.` : sorted.length ? "" : "No predicted setting of this task matches the filters.";
  }

  row(place, figures, state) {
    const fits = this.isFitting(place);
    const name = element("th", { scope: "row", title: this.settings[place] }, this.names[place]);
    const status = element("td", { class: "dsnb-text" }, "predicted");
    const fitting = element("td", { class: fits === "no" ? "dsnb-text dsnb-bad" : "dsnb-text" }, fits);
    const cells = figures.map((figure) => element("td", {}, this.text(figure, place, state)));
    return element("tr", {}, name, status, fitting, ...cells, element("td", { class: "dsnb-text" }, this.texts[this.outside[place]] ?? ""));
  }
}
