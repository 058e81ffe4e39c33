// What each chart shows of a selection: runs in, marks out. chart.js draws them.

const look = (axis, code) => ({ fill: axis.colours[code], shape: axis.shapes[code] });

// Colour and shape of a run, by the setting that is chosen for colour.
const style = (model, state, run) => {
  const axis = model.axis.get(state.colour);
  return look(axis, axis.codes[run]);
};

const namedTicks = (labels) => ({ x_labels: labels, x_longest: Math.max(0, ...(labels ?? []).map((label) => label.length)) });

// Round values on a logarithmic axis: 1, 2 and 5 times powers of ten, or of many the powers alone; null for too few of them.
const logTicks = (low, high) => {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) powers.push(power);
  const ticks = powers.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))).filter((tick) => tick >= low && tick <= high);
  if (ticks.length > 8) return ticks.filter((tick) => Number.isInteger(Math.log10(tick)));
  return ticks.length > 2 ? ticks : null;
};

// Titles, domains, labels and display factors of both axes; a scale is logarithmic only if all values are positive.
const frame = (model, state, x, y, xs, ys) => {
  const axis = model.axis.get(x);
  const types = {};
  for (const [side, name, values] of [["x", x, xs], ["y", y, ys]]) {
    const possible = !model.axis.get(name) && values.every((value) => !(value <= 0));
    types[side] = state[`${side}_scale`] === "log" && possible ? "log" : "linear";
  }
  const columns = axis ? model.columnsOf(axis, state) : [];
  const across = axis ? [-0.5, Math.max(columns.length, 1) - 0.5] : domain(xs, types.x === "log");
  const up = domain(ys, types.y === "log");
  const signals = {
    ...namedTicks(axis ? columns.map((code) => axis.labels[code]) : null), x_title: model.named.get(x).heading, y_title: y ? model.named.get(y).heading : "",
    x_low: across[0], x_high: across[1], y_low: up[0], y_high: up[1], x_factor: model.factor(x), y_factor: model.factor(y),
    x_ticks: types.x === "log" ? logTicks(...across) : null, y_ticks: types.y === "log" ? logTicks(...up) : null,
  };
  return { signals, types };
};

// Jitter runs of one value of a setting, always in the same way, so that they do not hide each other.
const JITTER = 0.3;
const jitter = (run, width = JITTER) => (((run * 0.61803398875) % 1) - 0.5) * width;

const MOST_NAMED = 12; // experiments of a chart
const LONGEST_NAME = 40;

// A name with as many parts as there is room for.
const shortened = (name) => {
  if (name.length <= LONGEST_NAME) return name;
  const end = name.lastIndexOf(",", LONGEST_NAME);
  return `${name.slice(0, end < 0 ? LONGEST_NAME : end + 1)} …`;
};

// The experiments to name in a chart, first those that matter most: the answer, the next best, the front, and where few are shown the others in
// the order of the answer. A name is the setting without the parts that all of these share, or the changes to the answer if they are shorter.
const named = (model, shown, front, answer) => {
  const options = answer?.options ?? [];
  const others = shown.size > MOST_NAMED ? [] : options;
  const experiments = [...options.slice(0, 2), ...front, ...others].map(({ experiment }) => experiment);
  const isKnown = (experiment) => shown.has(experiment) && model.candidates.has(experiment);
  const chosen = [...new Set(experiments)].filter(isKnown).slice(0, MOST_NAMED).map((experiment) => model.candidates.get(experiment));
  const partsOf = ({ setting, place }) => [...setting.split(", "), place].filter(Boolean);
  const isShared = (part) => chosen.length > 1 && chosen.every((one) => partsOf(one).includes(part));
  const nameOf = (one) => {
    const name = partsOf(one).filter((part) => !isShared(part)).join(", ");
    const changed = answer?.best ? answer.differing(one) : [];
    const changes = changed.length ? fill(model.words.like, { changes: answer.changes(changed, one) }) : name;
    return changes.length < name.length ? changes : name;
  };
  const shared = chosen.length ? partsOf(chosen[0]).filter(isShared).join(", ") : "";
  return { names: chosen.map((one) => ({ experiment: one.experiment, name: nameOf(one) })), shared };
};

// Where the better values of two figures meet: a corner of the plot, as a quarter of a circle; none if a figure has no better direction.
const betterCorner = (model, state) => {
  const sides = [state.x, state.y].map((name) => model.better(name));
  if (sides.includes(null)) return [];
  const [right, up] = sides.map((better) => Number(better === "higher"));
  const turns = [[0, 1], [3, 2]][right][up]; // quarters, clockwise from the top
  return [{ right, up, from: (turns * Math.PI) / 2, to: ((turns + 1) * Math.PI) / 2, text: model.words.better }];
};

// The first chart: runs, the Pareto front, runs that are not ok, names, and a star at the setting of the answer.
const scatter = (model, state, filtered, selected, front, answer) => {
  const { unselected } = model.colours;
  const [x, y] = [model.values(state.x, state), model.values(state.y, state)];
  const nominal = model.axis.has(state.x);
  const columns = nominal ? model.columnsOf(model.axis.get(state.x), state) : [];
  const at = (run) => (nominal ? columns.indexOf(x[run]) + jitter(run) : x[run]);
  const chosen = new Set(selected);
  const isMeasured = (run) => !Number.isNaN(x[run]) && !Number.isNaN(y[run]);
  const measured = filtered.filter(isMeasured);
  // Runs out of memory are where they needed it: along x in a lane at the bottom, or up y at their setting.
  const crosses = filtered.filter((run) => !model.ok[run]).map((run) => ({
    id: run, fill: chosen.has(run) ? model.statusColours[run] : unselected,
    x: nominal ? at(run) : model.memoryNeeded(state.x, run), y: nominal ? model.memoryNeeded(state.y, run) : undefined,
  }));
  const predicted = model.predictions.marks(state, state.x, state.y);
  const xs = [...measured.map((run) => x[run]), ...crosses.map((cross) => cross.x), ...predicted.flatMap((mark) => [mark.x, mark.left, mark.right])];
  const ys = [...measured.map((run) => y[run]), ...crosses.map((cross) => cross.y), ...predicted.flatMap((mark) => [mark.y, mark.low, mark.high])];
  const [across, up] = [model.capacityLines("x", state.x, filtered, xs), model.capacityLines("y", state.y, filtered, ys)];
  const { signals, types } = frame(model, state, state.x, state.y, [...xs, ...across.drawn], [...ys, ...up.drawn]);
  const points = measured.map((run) => {
    const mark = style(model, state, run);
    return { id: run, x: at(run), y: y[run], ...mark, fill: chosen.has(run) ? mark.fill : unselected };
  });
  points.sort((a, b) => (b.fill === unselected) - (a.fill === unselected));
  const unplaced = crosses.filter((cross) => cross.x === undefined); // spread over the lane below the plot
  unplaced.forEach((cross, index) => (cross.share = (index + 0.5) / unplaced.length));
  const message = points.length || crosses.length || predicted.length ? null : "No run that matches the filters measured both figures.";
  // A setting is marked at its run that is the nearest to its median.
  const spot = (experiment) => {
    const middle = model.spread(state.y, experiment, state).median;
    const [run] = model.whole.get(experiment).filter(isMeasured).sort((a, b) => Math.abs(y[a] - middle) - Math.abs(y[b] - middle));
    return run === undefined ? null : { x: at(run), y: y[run] };
  };
  const shown = new Set(measured.map((run) => model.experiments.codes[run]));
  const best = shown.has(answer?.best?.experiment) ? answer.best : null;
  const ranks = new Map(front.map(({ experiment }, order) => [experiment, String(order + 1)]));
  const { names, shared } = named(model, shown, front, answer);
  const weight = (experiment) => (experiment === best?.experiment ? "bold" : "normal");
  const labels = names.map(({ experiment, name }, order) => ({ ...spot(experiment), order, name: shortened(name), weight: weight(experiment) }));
  const missing = filtered.filter((run) => model.ok[run] && !isMeasured(run)).length;
  const notes = [
    shared ? fill(model.words.shared, { shared }) : "",
    crosses.length ? "Crosses mark failed runs: out of memory at the minimum memory they needed, others at the bottom in no order." : "",
    missing ? `Not drawn: ${count(missing, "ok run")} without these figures.` : "", model.predictions.note(state, predicted),
  ];
  const clipped = (side, end) => clamp(state.brush[side][end], signals[`${side}_low`], signals[`${side}_high`]);
  const region = state.brush && !nominal ? [{ x: clipped("x", 0), x2: clipped("x", 1), y: clipped("y", 0), y2: clipped("y", 1) }] : [];
  const data = {
    region, points, failed: crosses, predicted, front: front.map(({ experiment }) => ({ experiment, number: ranks.get(experiment), ...spot(experiment) })),
    names: labels, obstacles: shown.size > MOST_NAMED ? [] : points, best: best ? [spot(best.experiment)] : [],
    corner: betterCorner(model, state), capacity_x: across.marks, capacity_y: up.marks,
  };
  return { signals, types, data, message, note: joined(notes), labels: (plot) => scatterLabels({ signals, types, data }, plot) };
};

// Experiments along one setting: medians, ranges, every run; lines join experiments that are otherwise equal.
const medians = (model, state, selected, groups) => {
  const axis = model.axis.get(state.along);
  const y = model.values(state.y, state);
  const colours = model.axis.get(state.colour);
  const most = colours.values.length - 1;
  const offset = (code) => (state.colour === state.along || most < 1 ? 0 : (code / most - 0.5) * 0.5);
  const columns = model.columnsOf(axis, state);
  const at = (run) => columns.indexOf(axis.codes[run]) + offset(colours.codes[run]);
  const crosses = [];
  const marks = [];
  const equal = new Map();
  const along = model.experimentAxes.indexOf(state.along);
  for (const [experiment, runs] of groups) {
    const { n, median: middle, low, high } = model.spread(state.y, experiment, state);
    const bad = runs.find((run) => !model.ok[run]);
    if (!n && bad !== undefined) crosses.push({ id: bad, x: at(bad), y: model.memoryNeeded(state.y, bad), fill: model.statusColours[bad] });
    if (!n) continue;
    const others = model.settings[experiment].filter((code, index) => index !== along).join(" ");
    const colour = style(model, state, runs[0]);
    const mark = { id: experiment, isExperiment: true, x: at(runs[0]), y: middle, low, high, ...colour };
    marks.push(mark);
    if (along >= 0) equal.set(others, [...(equal.get(others) ?? []), { ...mark, code: axis.codes[runs[0]] }]);
  }
  const segments = [];
  for (const chain of equal.values()) {
    chain.sort((a, b) => a.x - b.x);
    const isSingle = ({ code }) => chain.filter((other) => other.code === code).length === 1; // others differ in more
    chain.slice(1).forEach((to, index) => {
      const from = chain[index];
      if (isSingle(from) && isSingle(to)) segments.push({ x: from.x, y: from.y, x2: to.x, y2: to.y, fill: to.fill });
    });
  }
  const runs = selected
    .filter((run) => !Number.isNaN(y[run]))
    .map((run) => ({ id: run, x: at(run) + jitter(run, 0.08), y: y[run], ...style(model, state, run) }));
  const predicted = model.predictions.marks(state, state.along, state.y, offset);
  const heights = [...[...runs, ...crosses].map((run) => run.y), ...predicted.flatMap((mark) => [mark.y, mark.low, mark.high])];
  const capacities = model.capacityLines("y", state.y, selected, heights);
  const { signals, types } = frame(model, { ...state, x_scale: "linear" }, state.along, state.y, [], [...heights, ...capacities.drawn]);
  const message = runs.length || crosses.length || predicted.length ? null : "No selected run measured this.";
  return { signals, types, data: { runs, medians: marks, segments, failed: crosses, predicted, capacity_y: capacities.marks }, message };
};

// The points of a line; those without a value leave no gap.
const pointsOf = (xs = [], ys = []) => xs.flatMap((x, index) => (Number.isFinite(x) && Number.isFinite(ys[index]) ? [[x, ys[index]]] : []));
const pathOf = (points) => (points.length ? `M${points.join("L")}` : "");

// Axes of a chart of lines that show all of these points, with other signals in place of the usual ones.
const lineFrame = (points, others) => {
  const [x, y] = [0, 1].map((side) => domain(points.map((point) => point[side])));
  const signals = { x_labels: null, x_factor: 1, y_factor: 1, x_low: x[0], x_high: x[1], y_low: y[0], y_high: y[1], ...others };
  return { signals, types: { x: "linear", y: "linear" } };
};

const SINCE_START = "time since start (s)";
const SOLID = [1, 0];
// Repeats of a setting share its colour and differ in their dashes.
const DASHES = [SOLID, [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]];

// The losses of the selected runs whose steps are in this page; a cross where one that is not ok ended.
const losses = (model, state, selected, side = "step") => {
  const curves = (name) => selected.map((run) => ({ run, points: pointsOf(model.series[run]?.[name], model.series[run]?.loss) })).filter(({ points }) => points.length);
  const timed = curves("t_s"); // a published curve may have no times
  const isTimed = side === "t_s" && timed.length > 0;
  const curvesShown = isTimed ? timed : curves("step");
  const lines = curvesShown.map(({ run, points }) => {
    const dash = DASHES[Math.max(0, (model.repeats[run] ?? 1) - 1) % DASHES.length];
    return { id: run, path: pathOf(points), fill: style(model, state, run).fill, dash };
  });
  const early = curvesShown.filter(({ run }) => !model.ok[run]);
  const ends = early.map(({ run, points }) => ({ id: run, x: points.at(-1)[0], y: points.at(-1)[1], fill: model.statusColours[run] }));
  const axes = lineFrame(curvesShown.flatMap(({ points }) => points), { x_title: isTimed ? SINCE_START : "optimizer step", y_title: "loss" });
  const message = lines.length ? null : "No loss of the selected runs is in this file.";
  const note = early.length ? `Crosses mark where ${count(early.length, "run")} ended early.` : "";
  return { ...axes, data: { lines, ends }, message, note, hasTimes: timed.length > 0 };
};

// One chart of a run over time, or the reason why it is empty: the timed steps, or all since the launch where there are none.
const series = (model, one, { values, times, heading, factor }) => {
  const all = pointsOf(one?.[times], one?.[values]);
  const timed = all.filter(([x]) => x > (one.warm_s ?? 0));
  const shown = timed.length ? timed : all;
  const low = shown === all ? 0 : one.warm_s ?? 0;
  const axes = lineFrame(shown, { x_title: SINCE_START, y_title: heading, x_low: low, y_factor: factor });
  const lines = [{ id: 0, path: pathOf(shown), fill: model.colours.run, dash: SOLID }];
  return { ...axes, data: { lines }, message: shown.length ? null : `${heading}: not measured in this run.` };
};

// What the best setting at each number of GPUs takes: days and cost, or GPU-hours where no price is known.
class ByGpus {
  constructor(model) {
    this.model = model;
    this.charts = ["Days by number of GPUs", "Cost by number of GPUs"].map((label) => new Chart("medians", label, { tooltip: ({ lines }) => lines }, 150));
    this.about = soft();
    const charts = box("dsnb-series", this.charts.map(({ node }) => node));
    this.node = card("Days and cost by number of GPUs", charts, this.about);
    this.node.classList.add("dsnb-unprinted");
  }

  // Hidden where settings use one or two numbers of GPUs.
  show({ measured, task, tokens, state }) {
    const { model } = this;
    const asked = JSON.stringify([task.title, tokens, state.prices, state.currency]);
    if (asked === this.asked) return; // filters and regions change nothing here
    this.asked = asked;
    const best = new Map();
    for (const one of measured.filter(({ unstable, days }) => !unstable && days > 0)) if (!(best.get(one.gpus)?.days <= one.days)) best.set(one.gpus, one);
    const numbers = [...best.keys()].sort((a, b) => a - b);
    this.node.hidden = numbers.length < 3 || measured[0].unit === "rank";
    if (this.node.hidden) return;
    const shown = numbers.map((gpus) => best.get(gpus));
    const priced = shown.every(({ cost }) => cost > 0) ? ["cost", `cost (${state.currency})`] : ["hours", `${shown[0].unit}-hours`];
    this.about.textContent = `The best setting at each number of ${shown[0].unit}s, for ${amount(model, tokens)} tokens.`;
    [["days", "days"], priced].forEach(([name, title], index) => this.charts[index].draw(this.picture(shown, numbers, name, title)));
  }

  picture(shown, numbers, name, title) {
    const [y_low, y_high] = domain(shown.map((one) => one[name]), true);
    const unit = `${shown[0].unit}s`;
    const signals = { x_title: unit, y_title: title, ...namedTicks(numbers.map((number) => fixed(number, 0))), y_ticks: logTicks(y_low, y_high), x_low: -0.5, x_high: numbers.length - 0.5, y_low, y_high, x_factor: 1, y_factor: 1 };
    const medians = shown.map((one, x) => ({
      id: x, x, y: one[name], low: one[name], high: one[name], fill: this.model.colours.run, shape: "circle",
      lines: [`${numbers[x]} ${unit}: ${significant(one[name])} ${title}`, one.setting],
    }));
    const segments = medians.slice(1).map((to, index) => ({ x: medians[index].x, y: medians[index].y, x2: to.x, y2: to.y, fill: to.fill }));
    return { signals, types: { x: "linear", y: "log" }, data: { medians, segments } };
  }
}
