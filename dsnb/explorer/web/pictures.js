// What each chart shows of a selection: runs in, marks out. chart.js draws them.

// Colour and shape of a run, by the setting that is chosen for colour.
const style = (model, state, run) => {
  const axis = model.axis.get(state.colour);
  const code = axis.codes[run];
  return { fill: axis.colours[code], shape: axis.shapes[code] };
};

// Titles, domains, labels and display factors of both axes; a scale is logarithmic only if all values are positive.
const frame = (model, state, x, y, xs, ys) => {
  const axis = model.axis.get(x);
  const codes = axis ? model.runsOf(model.task(state)).map((run) => axis.codes[run]).concat(model.predictions.codesOf(axis, state)) : []; // filters leave the axis as it is
  const types = {};
  for (const [side, name, values] of [["x", x, xs], ["y", y, ys]]) {
    const possible = !model.axis.get(name) && values.every((value) => !(value <= 0));
    types[side] = state[`${side}_scale`] === "log" && possible ? "log" : "linear";
  }
  const across = axis ? [Math.min(axis.values.length, ...codes) - 0.5, Math.max(0, ...codes) + 0.5] : domain(xs, types.x === "log");
  const up = domain(ys, types.y === "log");
  const signals = {
    x_title: model.heading(x), y_title: y ? model.heading(y) : "", x_labels: axis ? axis.labels : null,
    x_low: across[0], x_high: across[1], y_low: up[0], y_high: up[1], x_factor: model.factor(x), y_factor: model.factor(y),
  };
  return { signals, types };
};

// Jitter runs of one value of a setting, always in the same way, so that they do not hide each other.
const JITTER = 0.3;
const jitter = (run, width = JITTER) => (((run * 0.61803398875) % 1) - 0.5) * width;

const NOT_RUN = "No run of this task has ended, and no predicted setting can be drawn.";

// How many ok runs a chart leaves out, and for lack of which figure.
const unreported = (model, state, runs) => {
  if (!runs.length) return "";
  const without = [...new Set([state.y, state.x])].filter((name) => name && runs.some((run) => Number.isNaN(model.values(name, state)[run])));
  return `${count(runs.length, "ok run")} did not report ${without.map((name) => model.title(name)).join(" or ")} and ${runs.length === 1 ? "is" : "are"} not drawn.`;
};

// Where the setting of the answer is among the runs: a star; nowhere without one.
const starred = (model, state, runs, best) => {
  const own = runs.filter((run) => model.experiments.codes[run] === best);
  const at = (name) => (name ? model.spread(model.values(name, state), own).median : NaN);
  const star = { x: at(state.x), y: at(state.y) };
  return Number.isNaN(star.x) || Number.isNaN(star.y) ? [] : [star];
};

// The first chart: runs, the Pareto front, runs that are not ok, and the experiment that is the best.
const scatter = (model, state, filtered, selected, front, best) => {
  const { unselected } = model.colours;
  const nothing = new Float64Array(model.runs).fill(NaN);
  const [x, y] = [model.values(state.x, state), state.y ? model.values(state.y, state) : nothing];
  const nominal = model.axis.has(state.x);
  const chosen = new Set(selected);
  const measured = filtered.filter((run) => !Number.isNaN(x[run]) && !Number.isNaN(y[run]));
  const failed = filtered.filter((run) => !model.ok[run]);
  const short = { x: model.memory.shortages(state.x, failed), y: nominal ? model.memory.shortages(state.y, failed) : [] };
  const along = { x: measured.map((run) => x[run]), y: measured.map((run) => y[run]) };
  for (const side of ["x", "y"]) along[side].push(...short[side].map(({ gib }) => gib));
  const predicted = model.predictions.marks(state, state.x, state.y);
  along.x.push(...predicted.flatMap((mark) => [mark.x, mark.left, mark.right]));
  along.y.push(...predicted.flatMap((mark) => [mark.y, mark.low, mark.high]));
  const capacities = { x: model.memory.lines(state.x, filtered, along.x), y: model.memory.lines(state.y, filtered, along.y) };
  const { signals, types } = frame(model, state, state.x, state.y, [...along.x, ...capacities.x.drawn], [...along.y, ...capacities.y.drawn]);
  const floor = signals.y_high - signals.y_low;
  if (types.y === "linear") signals.y_low -= 0.08 * floor; // room for the lane of runs without this figure
  else signals.y_low /= (signals.y_high / signals.y_low) ** 0.08;
  const points = measured.map((run) => {
    const mark = style(model, state, run);
    return { id: run, x: x[run] + (nominal ? jitter(run) : 0), y: y[run], ...mark, fill: chosen.has(run) ? mark.fill : unselected };
  });
  points.sort((a, b) => (b.fill === unselected) - (a.fill === unselected));
  const crossFill = (run) => (chosen.has(run) ? model.status.colours[model.status.codes[run]] : unselected);
  const needed = new Map(short.x.map(({ run, gib }) => [run, gib]));
  const placed = new Set(short.y.map(({ run }) => run));
  const unplaced = failed.filter((run) => !placed.has(run));
  const unknown = unplaced.filter((run) => !needed.has(run));
  const place = (share) =>
    types.x === "log" ? signals.x_low * (signals.x_high / signals.x_low) ** share : signals.x_low + share * (signals.x_high - signals.x_low);
  const lane = unplaced.map((run) => ({
    id: run,
    x: nominal ? x[run] + jitter(run) : (needed.get(run) ?? place((unknown.indexOf(run) + 0.5) / unknown.length)),
    fill: crossFill(run),
  }));
  const shortages = short.y.map(({ run, gib }) => ({ id: run, x: x[run] + jitter(run), y: gib, fill: crossFill(run) }));
  const named = front.map((point, order) => ({ ...point, order, number: String(order + 1) }));
  const isRun = !model.predictions.names.length || model.runsOf(model.task(state)).length;
  const reason = filtered.length ? "No run measured both." : isRun ? "No run matches the filters: remove some." : NOT_RUN;
  const message = points.length || failed.length || predicted.length ? null : reason;
  const star = starred(model, state, filtered, best);
  const notes = [
    needed.size || placed.size ? "Crosses ran out of memory: they are at what they needed at least." : "",
    unknown.length && !nominal ? `${needed.size ? "Other crosses" : "Crosses"} were not measured: their position along the axis has no meaning.` : "",
    unreported(model, state, filtered.filter((run) => model.ok[run] && (Number.isNaN(x[run]) || Number.isNaN(y[run])))),
    capacities.x.note, capacities.y.note, model.predictions.note(state, predicted),
  ];
  const lines = { capacity_x: model.memory.marks("x", capacities.x.drawn), capacity_y: model.memory.marks("y", capacities.y.drawn) };
  return { signals, types, data: { points, failed: lane, shortages, front: named, best: star, predicted, ...lines }, message, note: notes.filter(Boolean).join(" ") };
};

// Experiments along one setting: medians, ranges, every run; lines join experiments that are otherwise equal.
const medians = (model, state, selected, groups) => {
  const axis = model.axis.get(state.along);
  const y = state.y ? model.values(state.y, state) : new Float64Array(model.runs).fill(NaN);
  const colours = model.axis.get(state.colour);
  const offset = (code) => {
    const count = colours.values.length;
    return state.colour === state.along || count < 2 ? 0 : (code / (count - 1) - 0.5) * 0.5;
  };
  const side = (run) => offset(colours.codes[run]);
  const failed = [];
  const shortages = [];
  const marks = [];
  const equal = new Map();
  for (const [experiment, runs] of groups) {
    const spread = model.spread(y, runs);
    const bad = runs.find((run) => !model.ok[run]);
    if (!spread.n && bad !== undefined) {
      const cross = { id: bad, x: axis.codes[bad] + side(bad), fill: model.status.colours[model.status.codes[bad]] };
      const [short] = model.memory.shortages(state.y, [bad]);
      if (short) shortages.push({ ...cross, y: short.gib });
      else failed.push(cross);
    }
    if (!spread.n) continue;
    const along = model.experimentAxes.indexOf(state.along);
    const joined = model.settings[experiment].filter((code, index) => index !== along).join(" ");
    const at = axis.codes[runs[0]] + side(runs[0]);
    marks.push({ id: experiment, isExperiment: true, x: at, y: spread.median, low: spread.low, high: spread.high, ...style(model, state, runs[0]) });
    if (along >= 0) equal.set(joined, [...(equal.get(joined) ?? []), { ...marks.at(-1), code: axis.codes[runs[0]] }]);
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
    .map((run) => ({ id: run, x: axis.codes[run] + side(run) + jitter(run, 0.08), y: y[run], ...style(model, state, run) }));
  const predicted = model.predictions.marks(state, state.along, state.y, offset);
  const heights = [...[...runs, ...shortages].map((run) => run.y), ...predicted.flatMap((mark) => [mark.y, mark.low, mark.high])];
  const { drawn: capacities } = model.memory.lines(state.y, selected, heights);
  const { signals, types } = frame(model, { ...state, x_scale: "linear" }, state.along, state.y, [], [...heights, ...capacities]);
  signals.y_low -= types.y === "linear" ? 0.08 * (signals.y_high - signals.y_low) : 0;
  const message = runs.length || failed.length || shortages.length || predicted.length ? null : "No selected run measured this.";
  const capacity_y = model.memory.marks("y", capacities);
  return { signals, types, data: { runs, medians: marks, segments, failed, shortages, predicted, capacity_y }, message };
};

// The points of a line; those without a value leave no gap.
const pointsOf = (xs = [], ys = []) => xs.flatMap((x, index) => (Number.isFinite(x) && Number.isFinite(ys[index]) ? [[x, ys[index]]] : []));
const pathOf = (points) => (points.length ? `M${points.join("L")}` : "");

// The domain of an axis that shows all of these points: x (side 0) or y (side 1).
const extentOf = (points, side) => domain(points.map((point) => point[side]));

const linear = (signals) => ({
  signals: { x_labels: null, x_factor: 1, y_factor: 1, ...signals }, types: { x: "linear", y: "linear" },
});

const SOLID = [1, 0];
// Repeats of a setting share its colour and differ in their dashes.
const DASHES = [SOLID, [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]];

// The losses of the selected runs whose steps are in this page; a cross where one that is not ok ended.
const losses = (model, state, selected) => {
  const known = selected.map((run) => ({ run, points: pointsOf(model.series[run]?.step, model.series[run]?.loss) })).filter(({ points }) => points.length);
  const lines = known.map(({ run, points }) => {
    const dash = DASHES[Math.max(0, (model.repeats[run] ?? 1) - 1) % DASHES.length];
    return { id: run, path: pathOf(points), fill: style(model, state, run).fill, dash };
  });
  const early = known.filter(({ run }) => !model.ok[run]);
  const ends = early.map(({ run, points }) => ({ id: run, x: points.at(-1)[0], y: points.at(-1)[1], fill: model.status.colours[model.status.codes[run]] }));
  const [x, y] = [0, 1].map((side) => extentOf(known.flatMap(({ points }) => points), side));
  const signals = { x_title: "optimizer step", y_title: "loss", x_low: x[0], x_high: x[1], y_low: y[0], y_high: y[1] };
  const message = lines.length ? null : "No loss of the selected runs is in this file.";
  const note = early.length ? `Crosses mark where ${count(early.length, "run")} ended early.` : "";
  return { ...linear(signals), data: { lines, ends }, message, note };
};

// One chart of a run over time, or the reason why it is empty: the timed steps, or all since the launch where there are none.
const series = (model, one, { values, times, heading, factor }) => {
  const all = pointsOf(one?.[times], one?.[values]);
  const timed = all.filter(([x]) => x > (one.warm_s ?? 0));
  const shown = timed.length ? timed : all;
  const [x, y] = [0, 1].map((side) => extentOf(shown, side));
  const low = shown === all ? 0 : one.warm_s ?? 0;
  const signals = { x_title: "time since start (s)", y_title: heading, x_low: low, x_high: x[1], y_low: y[0], y_high: y[1], y_factor: factor };
  const lines = [{ id: 0, path: pathOf(shown), fill: model.colours.run, dash: SOLID }];
  return { ...linear(signals), data: { lines }, message: shown.length ? null : `${heading}: not measured in this run.` };
};
