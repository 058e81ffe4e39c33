// The runs, and what a state selects of them. Values are in the units of the columns.

const median = (values) => {
  const sorted = Float64Array.from(values).sort();
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

// The numbers of a figure, as `stored` in dsnb/show/explorer/payload.py packs them; NaN where one is missing.
const columnOf = ({ values, shortDigits, of, factors, codes }, columns) => {
  if (of) return columns.get(of).map((value, run) => value * factors[codes ? codes[run] : 0]);
  const { buffer } = Uint8Array.from(atob(values), (character) => character.charCodeAt(0));
  if (!shortDigits) return new Float64Array(buffer);
  return Float64Array.from(new Float32Array(buffer), (value) => Number(value.toPrecision(shortDigits)));
};

// The Pareto front of points {x, y}, from best x to best y. A point beats another one if it is no worse in both figures, or with a tolerance if
// it is better by more than that in one and worse by no more than that in the other.
const paretoFront = (points, xBetter, yBetter, tolerance) => {
  const signs = [xBetter, yBetter].map((better) => (better === "higher" ? -1 : 1));
  const arePositive = points.every(({ x, y }) => x > 0 && y > 0);
  const margin = arePositive ? -Math.log1p(-tolerance) : 0;
  const places = new Map(points.map((point) => [point, [point.x, point.y].map((value, side) => signs[side] * (arePositive ? Math.log(value) : value))]));
  const kept = [];
  for (const [point, place] of [...places].sort(([, a], [, b]) => a[0] + a[1] - b[0] - b[1])) { // nothing is beaten by what follows it
    const beats = (other) => {
      const gains = place.map((value, side) => value - places.get(other)[side]);
      return Math.min(...gains) >= 0 || (Math.max(...gains) > margin && Math.min(...gains) >= -margin);
    };
    if (!kept.some(beats)) kept.push(point);
  }
  return kept.sort((a, b) => signs[0] * (a.x - b.x));
};

class Model {
  constructor(payload) {
    Object.assign(this, payload);
    this.axis = new Map(this.axes.map((axis) => [axis.name, axis]));
    this.figure = new Map(payload.figures.map((figure) => [figure.name, figure]));
    this.named = new Map([...this.axis, ...this.figure]);
    this.status = this.axis.get("status");
    this.rows = this.taskCodes.length; // the runs, then the predicted settings
    this.columns = new Map(this.axes.map((axis) => [axis.name, Float64Array.from(axis.codes, (code) => (code < 0 ? NaN : code))]));
    for (const figure of payload.figures.filter(({ name }) => name !== "days")) {
      const column = new Float64Array(this.rows).fill(NaN);
      column.set(columnOf(figure, this.columns).subarray(0, this.runs));
      payload.predicted.figures[figure.name]?.values.forEach((value, place) => (column[this.runs + place] = value ?? NaN));
      this.columns.set(figure.name, column);
    }
    const { values, labels, colours, codes } = this.status;
    this.ok = codes.map((code) => values[code] === "ok");
    this.statuses = codes.map((code) => labels[code]);
    this.statusColours = codes.map((code) => colours[code]);
    this.settings = []; // codes of each experiment
    this.whole = this.grouped([...this.experiments.codes.keys()]); // all runs of each experiment
    for (const [experiment, [run]] of this.whole) {
      this.settings[experiment] = this.experimentAxes.map((name) => this.axis.get(name).codes[run]);
    }
    this.tasks = payload.tasks.map((task) => new Task(this, task));
    this.candidates = new Map(this.tasks.flatMap(({ candidates }) => candidates.map((one) => [one.experiment, one])));
    this.short = this.experiments.short.map((text, experiment) => text ?? this.experiments.names[experiment]);
    this.predictions = new Predictions(this, payload.predicted);
  }

  // The sentence of a template with these facts, and those of every sentence.
  say(name, facts = {}) {
    return fill(this.templates[name], { ...this.facts, ...facts });
  }

  notOk(runs) {
    return runs.filter((run) => !this.ok[run]).length;
  }

  measured(runs, state) {
    return this.figures.filter(({ name }) => runs.some((run) => !Number.isNaN(this.values(name, state)[run])));
  }

  figuresOf({ x, y }) {
    return [...new Set([y, x])].map((name) => this.figure.get(name)).filter(Boolean);
  }

  // One figure or axis of every run and predicted setting; NaN where it is missing, or where there is no figure.
  values(name, state) {
    if (!name) return new Float64Array(this.rows).fill(NaN);
    if (name !== "days") return this.columns.get(name);
    if (this.days?.tokens !== state.train_tokens) {
      const tokens = (row) => state.train_tokens || this.tasks[this.taskCodes[row]].tokens;
      const days = (rate, row) => (rate > 0 ? tokens(row) / rate / 86400 : NaN);
      const values = this.columns.get("tokens_per_s").map(days);
      this.days = { tokens: state.train_tokens, values };
    }
    return this.days.values;
  }

  // The task that is shown, or all of them; undefined without runs.
  task(state) {
    return [...this.tasks, this.allTasks].find((task) => task?.title === state.task);
  }

  // A state with some controls changed, as by `change` in dsnb/show/explorer/state.py.
  changed(before, patch) {
    const isOther = "task" in patch && patch.task !== before.task;
    const isMeasured = (name) => this.runsOf(this.task(patch)).some((run) => !Number.isNaN(this.values(name, before)[run]));
    const fresh = isOther ? this.cleared(patch) : {};
    if (isOther && before.objective !== this.task(before)?.controls.objective) fresh.objective = before.objective; // it was chosen
    const kept = ["x", "y"].filter((side) => isOther && isMeasured(before[side])).map((side) => [side, before[side]]);
    const state = { ...before, ...fresh, ...Object.fromEntries(kept), ...patch };
    if (!("brush" in patch) && (before.x !== state.x || before.y !== state.y)) state.brush = null;
    return state;
  }

  // What a task starts with in place of what was chosen among other runs.
  cleared(state) {
    const filters = Object.fromEntries(this.axes.map(({ name }) => [name, []]));
    return { ...filters, base: null, brush: null, run: null, global_batch: 0, ...this.task(state)?.controls };
  }

  // The runs of a task, or of all, in order, then its predicted settings.
  rowsOf(task) {
    const code = this.tasks.indexOf(task);
    const isOf = (row) => task && (task === this.allTasks || this.taskCodes[row] === code);
    return [...this.taskCodes.keys()].filter(isOf);
  }

  runsOf(task) {
    return this.rowsOf(task).filter((row) => row < this.runs);
  }

  // The codes of a setting that occur in the task, in order: each has a column of a chart, whatever the filters.
  columnsOf(axis, state) {
    const codes = new Set(this.rowsOf(this.task(state)).map((row) => axis.codes[row]));
    return [...codes].filter((code) => code >= 0).sort((a, b) => a - b);
  }

  // The runs of the task that pass the filters, in order, then the predicted settings that do.
  passing(state) {
    const filters = this.axes.filter((axis) => state[axis.name]?.length);
    const has = ({ name, values, codes }, row) => state[name].includes(values[codes[row]]);
    const passes = (row) => filters.every((axis) => has(axis, row));
    return this.rowsOf(this.task(state)).filter(passes);
  }

  // Those of the runs that are in the brush, edges included.
  brushed(runs, state) {
    if (!state.brush) return runs;
    const [x, y] = [this.values(state.x, state), this.values(state.y, state)];
    const within = (value, [low, high]) => value >= low && value <= high;
    return runs.filter((run) => within(x[run], state.brush.x) && within(y[run], state.brush.y));
  }

  grouped(runs) {
    const groups = new Map();
    for (const run of runs) {
      const experiment = this.experiments.codes[run];
      if (!groups.has(experiment)) groups.set(experiment, []);
      groups.get(experiment).push(run);
    }
    return groups;
  }

  // Number, median, minimum and maximum of a figure over all runs of an experiment, selected or not; or over some runs.
  spread(name, experiment, state, runs = this.whole.get(experiment)) {
    const values = this.values(name, state);
    const measured = runs.map((run) => values[run]).filter((value) => !Number.isNaN(value));
    if (!measured.length) return { n: 0, median: NaN, low: NaN, high: NaN };
    return { n: measured.length, median: median(measured), low: Math.min(...measured), high: Math.max(...measured) };
  }

  better(name) {
    return this.figure.get(name)?.better || null;
  }

  isUnstable(experiment) {
    return Boolean(this.candidates.get(experiment)?.unstable);
  }

  // The Pareto front of the stable settings: [{experiment, x, y}].
  front(groups, state) {
    if (!this.better(state.x) || !this.better(state.y) || state.x === state.y) return [];
    const points = [...groups.keys()]
      .filter((experiment) => !this.isUnstable(experiment))
      .map((experiment) => ({ experiment, x: this.spread(state.x, experiment, state).median, y: this.spread(state.y, experiment, state).median }))
      .filter((point) => !Number.isNaN(point.x) && !Number.isNaN(point.y));
    return paretoFront(points, this.better(state.x), this.better(state.y), state.relevance);
  }

  // The baseline experiment: the chosen one, else the first in Python's order; none without runs.
  base(groups, state) {
    const { names, bases } = this.experiments;
    return [names.indexOf(state.base), ...bases].find((experiment) => groups.has(experiment));
  }

  // The effect of changing one setting, by group of settings, the largest first: [{axis, before, after, experiment, runs, changes}], a change for
  // each figure.
  effects(groups, base, figures, state) {
    const baseSettings = this.settings[base];
    const effects = [];
    for (const [experiment, runs] of groups) {
      const other = this.settings[experiment];
      const changed = baseSettings.flatMap((code, index) => (code === other[index] ? [] : [index]));
      if (changed.length !== 1) continue;
      const axis = this.axis.get(this.experimentAxes[changed[0]]);
      const changes = figures.map((name) => compared(this, name, base, experiment, state));
      effects.push({ axis, before: baseSettings[changed[0]], after: other[changed[0]], experiment, runs, changes });
    }
    const size = ({ changes: [{ change }] }) => change || -Infinity;
    return effects.sort((a, b) => a.axis.group - b.axis.group || size(b) - size(a) || a.after - b.after);
  }

  remarksOn(run) {
    return (this.remarks.runs[run] ?? []).map((place) => this.remarks.texts[place]);
  }

  // What a value of a figure or axis is multiplied by to be in its display unit.
  factor(name) {
    return this.figure.get(name)?.factor ?? 1;
  }

  // A value in its display unit, rounded to what a decimal number keeps.
  displayed(name, value) {
    return Number((value * this.factor(name)).toPrecision(15));
  }

  number(name, value) {
    if (value === undefined || Number.isNaN(value)) return "";
    const shown = this.displayed(name, value);
    return fixed(shown, (this.figure.get(name)?.digits ?? 0) + (shown !== 0 && Math.abs(shown) < 1 ? 2 : 0));
  }

  // What the GPU of a run has in GiB, null if unknown.
  capacity(run) {
    const { capacity_gib } = this.memory;
    return (Array.isArray(capacity_gib) ? capacity_gib[run] : capacity_gib) ?? null;
  }

  // The share of the GPU that a run left free; NaN if unknown.
  headroom(run) {
    const used = this.memory.fullest.map((name) => this.columns.get(name)?.[run] ?? NaN).find((gib) => !Number.isNaN(gib));
    const capacity = this.capacity(run);
    return used !== undefined && capacity ? 1 - used / capacity : NaN;
  }

  // Where a run that did not fit is on an axis that shows memory; undefined on others.
  memoryNeeded(name, run) {
    return this.memory.figures.includes(name) ? this.memory.needed_gib[run] : undefined;
  }

  // The capacities of GPUs on an axis with these values, and their marks; those that would squash the rest are left out.
  capacityLines(side, name, runs, values) {
    const most = values.filter(Number.isFinite).reduce((a, b) => Math.max(a, b), 0);
    const capacities = this.memory.figures.includes(name) ? [...new Set(runs.map((run) => this.capacity(run)).filter(Boolean))].sort((a, b) => a - b) : [];
    const drawn = capacities.filter((gib) => gib <= 2 * most);
    return { drawn, marks: drawn.map((gib) => ({ [side]: gib, text: `GPU: ${significant(gib)} GiB` })) };
  }
}
