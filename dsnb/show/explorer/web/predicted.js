// Predicted settings that were not run. No count, median, front or answer includes them.

class Predictions {
  constructor(model, payload) {
    Object.assign(this, payload, { model });
    if (!this.names.length && !this.notes.length) return;
    const figures = Object.values(this.figures);
    const texts = (place) => [this.fit[place], ...figures.map((figure) => figure.texts[place]), this.outside[place]];
    this.rows = this.names.map((name, place) => tableRow(element("span", { title: this.settings[place] }, name), texts(place)));
    const heads = [heading("setting", true), ...["would fit", ...figures.map((figure) => figure.heading), "less sure, because"].map((title) => heading(title))];
    this.none = soft("No predicted setting of this task matches the filters.");
    this.common = soft();
    this.node = card("Predicted, not run", ...this.notes.map((note) => soft(note)), this.common, scrollTable("Predicted settings", heads, this.rows, "dsnb-runs"), this.none);
    this.node.classList.add("dsnb-predicted", "dsnb-unprinted");
  }

  hardware(place) {
    return `${this.gpus[place]} ${this.kinds[place]}`;
  }

  // Those of the task that pass the filters, by place.
  shown(state) {
    const { runs } = this.model;
    return this.model.passing(state).filter((row) => row >= runs).map((row) => row - runs);
  }

  // A figure, which the runs need not have, or the code of a setting.
  value(name, place, state) {
    return this.model.values(name, state)?.[this.model.runs + place] ?? this.figures[name]?.values[place] ?? NaN;
  }

  // Its range; the figure alone where there is none, as where memory is tight.
  range(name, place, state) {
    const value = this.value(name, place, state);
    const figure = this.figures[name === "days" ? "tokens_per_s" : name];
    const low = figure?.low[place] || 1;
    const high = figure?.high[place] || 1;
    return name === "days" ? [value / high, value / low] : [value * low, value * high];
  }

  // The marks of what fits, or may fit, and has both figures. `offset` is that of a value of the colour along a setting.
  marks(state, x, y, offset = () => 0) {
    const { model } = this;
    const isKnown = (place) => [x, y].every((name) => !Number.isNaN(this.value(name, place, state)));
    const axis = model.axis.get(state.colour);
    const along = model.axis.get(x);
    const columns = along ? model.columnsOf(along, state) : [];
    return this.shown(state).filter((place) => this.fit[place] !== "no" && isKnown(place)).map((place) => {
      const value = this.value(x, place, state);
      const position = along ? columns.indexOf(value) : value;
      const [left, right] = along ? [position, position] : this.range(x, place, state);
      const [low, high] = this.range(y, place, state);
      const code = axis.codes[model.runs + place];
      const look = code < 0 ? { fill: model.colours.predicted, shape: "circle" } : style(model, state, model.runs + place);
      const at = { x: position + offset(Math.max(code, 0)), y: this.value(y, place, state) };
      return { id: place, isPredicted: true, ...at, left, right, low, high, ...look };
    });
  }

  note(state, marks) {
    const all = this.shown(state).length;
    if (!all) return "";
    return `Hollow marks are predicted, not run: their lines are ranges that 80 % of such predictions keep, ± the mean error of memory. ${marks.length} of ${count(all, "predicted setting")} would fit and have both figures.`;
  }

  describe(place) {
    const lines = Object.values(this.figures).map(({ heading, texts }) => `${heading}: ${texts[place]}`);
    const outside = this.outside[place];
    const nearest = this.nearest[place];
    return [`${this.settings[place]}, ${this.hardware(place)}`, "predicted, not run", ...lines, ...(nearest ? [`nearest run: ${nearest}`] : []), ...(outside ? [`less sure: ${outside}`] : [])].map(cut);
  }

  // The best predicted setting of a task, as an option of its answer; undefined without any.
  best(answer) {
    const { state, model } = answer;
    const least = LEAST[state.objective];
    const figures = (place) => ({ rate: this.value("tokens_per_s", place, state), memory: this.value("peak_allocated_gib", place, state) });
    const options = this.shown({ task: state.task })
      .filter((place) => this.fit[place] !== "no" && (!state.gpus_at_hand || this.gpus[place] <= state.gpus_at_hand))
      .map((at) => answer.option({
        at, setting: this.settings[at], ...figures(at), gpus: this.gpus[at], kind: this.kinds[at],
        place: this.hardware(at), power: null, basis: "predicted",
      }))
      .filter((option) => option[least] > 0);
    if (!options.length) return undefined;
    const smallest = (some) => some.reduce((one, other) => (other[least] < one[least] ? other : one));
    const close = (1 + model.limits.worthRoom) * smallest(options)[least];
    const roomy = options.filter((one) => this.fit[one.at] !== "tight" && one[least] <= close);
    return smallest(roomy.length ? roomy : options);
  }

  // A sentence on the best predicted setting if it beats the best measured one; otherwise empty.
  worthMeasuring(answer) {
    const { state, best, task, model } = answer;
    const isMemory = state.objective === "memory";
    const least = LEAST[state.objective];
    if (state.global_batch || (isMemory && best && task.memoryFigure !== "peak_allocated_gib")) return "";
    const option = this.best(answer);
    if (!option) return "";
    const { heading, texts, errors } = this.figures[isMemory ? "peak_allocated_gib" : "tokens_per_s"];
    const setting = `${option.setting} on ${option.place}, predicted and not measured: ${heading} ${texts[option.at]}`;
    if (!best) return model.say("worth.first", { setting });
    const gain = 100 * (1 - option[least] / best[least]);
    if (!(gain > 0)) return "";
    const sure = gain > (errors[option.at] ?? Infinity) ? "more than" : "within";
    const what = model.words.gain[state.objective];
    return model.say("worth", { setting, gain: significant(gain, 2), what, sure });
  }

  show(state) {
    if (!this.node) return;
    const shown = new Set(this.shown(state));
    this.rows.forEach((row, place) => row.toggleAttribute("hidden", !shown.has(place)));
    this.none.hidden = shown.size > 0;
    this.common.textContent = this.shared[this.model.tasks.indexOf(this.model.task(state))] ?? "";
  }
}
