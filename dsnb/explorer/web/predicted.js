// Predicted settings that were not run: hollow marks beside the runs, a table of their own, what is worth measuring. They
// are no runs of the model, so that no count, median, front or answer includes them.

class Predictions {
  constructor(model, payload) {
    Object.assign(this, payload, { model });
    if (!this.names.length && !this.notes.length) return;
    this.table = new DataTable("Predicted settings", "predicted");
    this.none = soft("No predicted setting of this task matches the filters.");
    this.node = card("Predicted, not run", ...this.notes.map((note) => soft(note)), this.table.node, this.none);
    this.node.classList.add("dsnb-predicted");
  }

  // The predicted settings of the task that pass the filters.
  shown(state) {
    const { model } = this;
    const task = model.task(state);
    const isOfTask = (place) => task && (task === model.allTasks || model.tasks[this.tasks[place]] === task);
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
    if (name === "days") return this.model.tokensOf(this.tasks[place], state) / this.value("tokens_per_s", place, state) / 86400;
    return this.figures[name]?.[place] ?? NaN;
  }

  error(name, place) {
    return this.errors[name === "days" ? "tokens_per_s" : name]?.[place] ?? NaN;
  }

  range(name, place, state) {
    const value = this.value(name, place, state);
    const factor = 1 + (this.model.axis.has(name) ? 0 : this.error(name, place) || 0) / 100;
    return [value / factor, value * factor];
  }

  // The marks of what fits, or may fit, and has both figures. `offset` is that of a value of the colour along a setting.
  marks(state, x, y, offset = () => 0) {
    const { model } = this;
    const isKnown = (place) => [x, y].every((name) => !Number.isNaN(this.value(name, place, state)));
    const axis = model.axis.get(state.colour);
    const along = model.axis.get(x);
    const columns = along ? model.columnsOf(along, state) : [];
    return this.shown(state).filter((place) => this.fits[place] !== false && isKnown(place)).map((place) => {
      const own = along ? columns.indexOf(this.value(x, place, state)) : this.value(x, place, state);
      const [[left, right], [low, high]] = [along ? [own, own] : this.range(x, place, state), this.range(y, place, state)];
      const code = this.codes[state.colour]?.[place];
      const style = code === undefined ? { fill: model.colours.predicted, shape: "circle" } : { fill: axis.colours[code], shape: axis.shapes[code] };
      const at = { x: own + offset(code ?? 0), y: this.value(y, place, state) };
      return { id: place, isPredicted: true, ...at, left, right, low, high, ...style };
    });
  }

  legend(state) {
    return this.shown(state).length ? [{ label: "predicted, not run", shape: "circle", fill: this.model.colours.predicted, hollow: true }] : [];
  }

  // What hollow marks are, and how many settings have none.
  note(state, marks) {
    const hidden = this.shown(state).length - marks.length;
    return [
      marks.length ? "Hollow marks are predicted, not run: their lines are ± the mean error of such predictions." : "",
      hidden ? `Not drawn: ${count(hidden, "predicted setting")} that would not fit or whose figures here are not predicted.` : "",
    ].filter(Boolean).join(" ");
  }

  // A figure with its error, as in "76,700 ± 6.2 %".
  text(name, place, state) {
    const value = this.value(name, place, state);
    return Number.isNaN(value) ? "" : `${this.model.number(name, value)} ± ${fixed(this.error(name, place), 1)} %`;
  }

  // The lines of the tooltip of a mark.
  describe(place, state) {
    const { model } = this;
    const figures = [...new Set([state.y, state.x])].filter((name) => model.figure.has(name) && this.text(name, place, state));
    const outside = this.outsides[this.outside[place]];
    const lines = figures.map((name) => `${model.named.get(name).heading}: ${this.text(name, place, state)}`);
    return [this.names[place], "predicted, not run", this.settings[place], ...lines, ...(outside ? [`less sure: ${outside}`] : [])].map(cut);
  }

  // The predicted setting that would beat the best measured one in what is to be least; empty without one.
  worthMeasuring(answer) {
    const { state, best, task, model } = answer;
    const isMemory = state.objective === "memory";
    const amountOf = (place) => {
      if (isMemory) return !best || task.memoryFigure === "peak_allocated_gib" ? this.value("peak_allocated_gib", place, state) : NaN;
      return answer.option({ rate: this.value("tokens_per_s", place, state), gpus: this.gpus[place], kind: this.kinds[place], power: null })[LEAST[state.objective]];
    };
    const fitting = this.shown({ task: state.task }).filter((place) => this.fits[place] !== false && !state.global_batch && (!state.gpus_at_hand || this.gpus[place] <= state.gpus_at_hand));
    const amounts = fitting.map((place) => [amountOf(place), place]).filter(([one]) => one > 0);
    if (!amounts.length) return "";
    const [least, place] = amounts.reduce((one, other) => (other[0] < one[0] ? other : one));
    const figure = isMemory ? "peak_allocated_gib" : "tokens_per_s";
    const said = `${this.names[place]}, predicted and not measured: ${isMemory ? "memory (GiB)" : "tokens/s"} ${this.text(figure, place, state)}`;
    if (!best) return fill(model.templates["worth.first"], { said });
    const own = best[LEAST[state.objective]];
    if (!(least < own)) return "";
    const gain = 100 * (1 - least / own);
    const sure = gain > this.error(figure, place) ? "more than" : "within";
    return fill(model.templates.worth, { said, gain: significant(gain, 2), what: model.words.gain[state.objective], sure });
  }

  // The fastest first; those that would not fit last. The file has how the settings are set, and each figure in the units of its heading with
  // its mean error.
  show(state) {
    if (!this.node) return;
    const { model } = this;
    const rate = (place) => this.value("tokens_per_s", place, state);
    const sorted = this.shown(state).sort((a, b) => (this.fits[a] === false) - (this.fits[b] === false) || rate(b) - rate(a));
    const text = (title, content, isBad = () => false) => ({ title, text: content, file: content, isText: true, isBad });
    const name = { ...text("experiment", (place) => this.names[place]), text: (place) => element("span", { title: this.settings[place] }, this.names[place]) };
    const status = text("status", () => "predicted");
    const fits = text("would fit", (place) => ({ true: "yes", false: "no" })[this.fits[place]] ?? "unknown", (place) => this.fits[place] === false);
    const outside = text("less sure, because", (place) => this.outsides[this.outside[place]] ?? "");
    const known = [...Object.keys(this.figures), "days"].filter((figure) => model.figure.has(figure));
    const figures = known.flatMap((figure) => [
      { figure, title: model.named.get(figure).heading, text: (place) => this.text(figure, place, state), file: (place) => model.displayed(figure, this.value(figure, place, state)) },
      { title: `${model.named.get(figure).heading}, mean error (%)`, file: (place) => this.error(figure, place) },
    ]);
    const axes = model.axes.filter((axis) => this.codes[axis.name]);
    const settings = axes.map((axis) => ({ title: axis.title, file: (place) => axis.values[this.codes[axis.name][place]] }));
    const shown = ["tokens_per_s", "step_time_s", "peak_allocated_gib", "days"].map((one) => figures.find(({ figure }) => figure === one)).filter(Boolean);
    this.table.show([name, status, fits, ...shown, outside], sorted, [name, status, fits, ...settings, ...figures, outside]);
    this.table.node.hidden = !sorted.length;
    this.none.hidden = sorted.length > 0;
  }
}
