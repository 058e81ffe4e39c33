// The runs, and what a state selects of them, without any drawing. The rules are those of dsnb/explorer/state.py and
// dsnb/analysis/tradeoffs.py; tests compare both sides. Values are in the units of the columns; `displayed` converts them.

const median = (values) => {
  const sorted = Float64Array.from(values).sort();
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

// The numbers of a figure, as dsnb/explorer/columns.py stores them, from the columns before it; NaN where one is missing.
const columnOf = ({ values, of, factors, codes }, columns) => {
  if (of) return columns.get(of).map((value, run) => value * factors[codes ? codes[run] : 0]);
  return new Float64Array(Uint8Array.from(atob(values), (character) => character.charCodeAt(0)).buffer);
};

// Each experiment's setting in words, as `_shared` in dsnb/explorer/decisions.py stores them; null for none.
const settingsOf = ({ texts, places, codes }) => codes.map((code) => code && { ...places[code[1]], setting: texts[code[0]] });

class Axis {
  constructor(axis) {
    Object.assign(this, axis);
  }

  // Whether there are several known values to choose from among these codes; missing ones are no choice.
  isChoice(codes) {
    return [...new Set(codes)].filter((code) => this.values[code] !== null).length > 1;
  }
}

class Model {
  constructor(payload) {
    Object.assign(this, payload);
    this.decision = { ...payload.decision, settings: settingsOf(payload.decision.settings) };
    this.axes = payload.axes.map((axis) => new Axis(axis));
    this.axis = new Map(this.axes.map((axis) => [axis.name, axis]));
    this.figure = new Map(payload.figures.map((figure) => [figure.name, figure]));
    this.status = this.axis.get("status");
    this.columns = new Map();
    for (const axis of payload.axes) this.columns.set(axis.name, Float64Array.from(axis.codes));
    for (const figure of payload.figures) {
      if (figure.name !== "days") this.columns.set(figure.name, columnOf(figure, this.columns));
    }
    this.ok = this.status.codes.map((code) => this.status.values[code] === payload.rules.okStatus);
    this.settings = payload.experiments.names.map(() => null);
    payload.experiments.codes.forEach((experiment, run) => {
      this.settings[experiment] ??= payload.experimentAxes.map((name) => this.axis.get(name).codes[run]);
    });
    this.unstable = new Set(payload.decision.unstable); // experiments whose repeats do not agree
    this.short = this.shortNames();
    this.differences = new Differences(this);
    this.memory = new GpuMemory(this, payload.memory);
    this.predictions = new Predictions(this, payload.predicted);
  }

  // Each experiment by the settings that have several known values in its task, without those at their usual values, as
  // in "ZeRO 3, bf16"; by its full name where another one of the task has the same.
  shortNames() {
    const names = [...this.experiments.names];
    for (const task of this.decision.tasks) {
      const own = [...this.grouped(this.runsOf(task)).keys()];
      const varies = this.experimentAxes.map((name, index) => this.axis.get(name).isChoice(own.map((experiment) => this.settings[experiment][index])));
      const labels = (codes) => codes.map((code, index) => varies[index] && this.axis.get(this.experimentAxes[index]).shortLabels[code]);
      const texts = new Map(own.map((experiment) => [experiment, labels(this.settings[experiment]).filter(Boolean).join(", ")]));
      const counts = new Map();
      for (const text of texts.values()) counts.set(text, (counts.get(text) ?? 0) + 1);
      for (const [experiment, text] of texts) if (text && counts.get(text) === 1) names[experiment] = text;
    }
    return names;
  }

  // One figure or axis of every run; NaN where it is missing.
  values(name, state) {
    if (name !== "days") return this.columns.get(name);
    return this.columns.get("tokens_per_s").map((rate) => (rate > 0 ? state.train_tokens / rate / 86400 : NaN));
  }

  title(name) {
    return this.axis.get(name)?.title ?? this.figure.get(name).title;
  }

  heading(name) {
    return this.axis.get(name)?.title ?? this.figure.get(name).heading;
  }

  // The task that is shown, or all of them; undefined without runs.
  task(state) {
    const { tasks, allTasks } = this.decision;
    return [...tasks, allTasks].find((task) => task?.title === state.task);
  }

  // A state with some controls changed, as by `change` in dsnb/explorer/state.py.
  changed(before, patch) {
    const isOther = "task" in patch && patch.task !== before.task; // then what was chosen among other runs is given up
    const controls = isOther ? { ...this.task(patch).controls, ...this.measuredAxes(before, this.task(patch)) } : {};
    const state = { ...before, ...controls, ...patch };
    if (!("brush" in patch) && (before.x !== state.x || before.y !== state.y)) state.brush = null;
    return state;
  }

  // The x and the y of a state, or the usual ones of a task whose runs did not measure them.
  measuredAxes(state, task) {
    const isMeasured = (name) => name && this.runsOf(task).some((run) => !Number.isNaN(this.values(name, state)[run]));
    return Object.fromEntries(["x", "y"].map((side) => [side, isMeasured(state[side]) ? state[side] : task.controls[side]]));
  }

  showsAllTasks(state) {
    return Boolean(this.decision.allTasks) && this.task(state) === this.decision.allTasks;
  }

  // The runs of a task, or of all, in order.
  runsOf(task) {
    if (task && task === this.decision.allTasks) return [...this.decision.taskCodes.keys()];
    const code = this.decision.tasks.indexOf(task);
    return this.decision.taskCodes.flatMap((own, run) => (own === code ? [run] : []));
  }

  // The runs of the task that pass the filters, in order.
  filtered(state) {
    const filters = this.axes
      .filter((axis) => state[axis.name].length)
      .map((axis) => [axis.codes, new Set(state[axis.name].map((value) => axis.values.indexOf(value)))]);
    return this.runsOf(this.task(state)).filter((run) => filters.every(([codes, chosen]) => chosen.has(codes[run])));
  }

  // Those of the runs that are in the brush, edges included.
  brushed(runs, state) {
    if (!state.brush) return runs;
    const x = this.values(state.x, state);
    const y = this.values(state.y, state);
    const within = (value, [low, high]) => value >= low && value <= high;
    return runs.filter((run) => within(x[run], state.brush.x) && within(y[run], state.brush.y));
  }

  // Map each experiment to its runs among these, in order of appearance.
  grouped(runs) {
    const groups = new Map();
    for (const run of runs) {
      const experiment = this.experiments.codes[run];
      if (!groups.has(experiment)) groups.set(experiment, []);
      groups.get(experiment).push(run);
    }
    return groups;
  }

  // Count, median, standard deviation, minimum and maximum of a figure over runs.
  spread(values, runs) {
    const known = [];
    for (const run of runs) if (!Number.isNaN(values[run])) known.push(values[run]);
    if (!known.length) return { n: 0, median: NaN, deviation: NaN, low: NaN, high: NaN };
    const deviation = Math.sqrt(moments(known).variance);
    return { n: known.length, median: median(known), deviation, low: Math.min(...known), high: Math.max(...known) };
  }

  // A figure over runs as text: a single value, the range of two or three, median ± standard deviation of more; the same
  // as repeats_text in dsnb/render/tables.py.
  repeatsText(name, { n, median: middle, deviation, low, high }) {
    const ends = [...new Set([low, high].map((value) => this.number(name, value)))];
    return n < this.method.fewestRuns ? ends.join(" to ") : `${this.number(name, middle)} ± ${this.number(name, deviation)}`;
  }

  better(name) {
    return this.figure.get(name)?.better || null;
  }

  // The Pareto front of the stable settings with a tolerance, as dsnb/analysis/tradeoffs.py, from best x to best y:
  // [{experiment, x, y}].
  front(groups, state) {
    if (!this.better(state.x) || !this.better(state.y) || state.x === state.y) return [];
    const [xs, ys] = [this.values(state.x, state), this.values(state.y, state)];
    const points = [...groups]
      .filter(([experiment]) => !this.unstable.has(experiment))
      .map(([experiment, runs]) => ({ experiment, x: this.spread(xs, runs).median, y: this.spread(ys, runs).median }))
      .filter((point) => !Number.isNaN(point.x) && !Number.isNaN(point.y));
    return paretoFront(points, this.better(state.x), this.better(state.y), state.relevance);
  }

  // The baseline experiment: the chosen one, else the best in y of those whose repeats agree, else the first.
  base(groups, state) {
    const chosen = this.experiments.names.indexOf(state.base);
    if (groups.has(chosen)) return chosen;
    const values = this.values(state.y, state);
    if (!values) return groups.keys().next().value ?? null;
    const sign = this.better(state.y) === "lower" ? 1 : -1;
    let best = null;
    let least = Infinity;
    const stable = [...groups].filter(([experiment]) => !this.unstable.has(experiment));
    for (const [experiment, runs] of stable.length ? stable : groups) {
      const value = sign * this.spread(values, runs).median;
      if (value < least || best === null) [best, least] = [experiment, Number.isNaN(value) ? Infinity : value];
    }
    return best;
  }

  // The effect of changing one setting: [{axis, before, after, experiment, runs, changes}], a change for each figure.
  effects(groups, base, metrics, state) {
    const own = this.settings[base];
    const found = [];
    for (const [experiment, runs] of groups) {
      const other = this.settings[experiment];
      const changed = own.flatMap((code, index) => (code === other[index] ? [] : [index]));
      if (changed.length !== 1) continue;
      const [index] = changed;
      found.push({ axis: this.experimentAxes[index], index, before: own[index], after: other[index], experiment, runs });
    }
    found.sort((a, b) => a.index - b.index || a.after - b.after);
    const others = found.map(({ runs }) => runs);
    const compared = metrics.map((name) => this.differences.compare(groups.get(base), others, name, this.values(name, state), state.relevance));
    return found.map((one, row) => ({ ...one, changes: compared.map((changes) => changes[row]) }));
  }

  // The value of an axis or figure of one run, as text.
  cellText(name, run, state) {
    const axis = this.axis.get(name);
    return axis ? axis.labels[axis.codes[run]] : this.number(name, this.values(name, state)[run]);
  }

  // A figure with its name and unit, as in "memory allocated 6.00 GiB" and "76,717 tokens/s".
  labelled(name, value) {
    return this.labelledText(name, this.number(name, value));
  }

  labelledText(name, text) {
    const { title, unit } = this.figure.get(name);
    return title.includes("/") ? `${text} ${title}` : `${title} ${text} ${unit}`.trim();
  }

  // What a value of a figure or axis is multiplied by to be in its display unit.
  factor(name) {
    return this.figure.get(name)?.factor ?? 1;
  }

  // A value in its display unit, and back; rounded to what a decimal number keeps, so that both undo each other.
  displayed(name, value) {
    return Number((value * this.factor(name)).toPrecision(15));
  }

  undisplayed(name, value) {
    return Number((value / this.factor(name)).toPrecision(15));
  }

  // A value as text in its display unit.
  number(name, value) {
    if (value === undefined || Number.isNaN(value)) return "";
    const shown = this.displayed(name, value);
    const digits = (this.figure.get(name)?.digits ?? 0) + (shown !== 0 && Math.abs(shown) < 1 ? 2 : 0);
    return fixed(shown, digits);
  }
}
