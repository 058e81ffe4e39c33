// The charts whose marks are lines: losses of many runs, one run over time, pinned runs side by side.

// Points along a line; those without a value leave no gap.
class Curve {
  constructor(xs, ys) {
    const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
    this.points = xs.flatMap((x, index) => (isNumber(x) && isNumber(ys[index]) ? [[x, ys[index]]] : []));
  }

  after(from) {
    const later = new Curve([], []);
    later.points = this.points.filter(([x]) => x > from);
    return later;
  }

  // The whole line as one SVG path, in the units of its points.
  get path() {
    return (this.drawn ??= this.points.length ? `M${this.points.join("L")}` : "");
  }

  // The smallest and the largest x (side 0) or y (side 1); nothing without points.
  extent(side) {
    this.extents ??= [0, 1].map((which) => {
      const values = this.points.map((point) => point[which]);
      return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [];
    });
    return this.extents[side];
  }

  get end() {
    const [x, y] = this.points.at(-1);
    return { x, y };
  }
}

// The domain of an axis that shows all of these curves.
const extentOf = (curves, side) => domain(curves.flatMap((curve) => curve.extent(side)));

const linear = (signals) => ({
  signals: { x_labels: null, x_factor: 1, y_factor: 1, ...signals }, types: { x: "linear", y: "linear" },
});

const SOLID = [1, 0];
// Repeats of a setting share its colour and differ in their dashes.
const DASHES = [SOLID, [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]];

const lossCurves = new WeakMap(); // of the steps of runs: a filter draws the same lines again
const lossCurve = (one) => {
  if (!one?.loss) return null;
  if (!lossCurves.has(one)) lossCurves.set(one, new Curve(one.step, one.loss));
  const curve = lossCurves.get(one);
  return curve.points.length ? curve : null;
};

// The losses of the selected runs whose steps are in this page; a cross where one that is not ok ended.
const losses = (model, state, selected) => {
  const known = selected.map((run) => ({ run, curve: lossCurve(model.series[run]) })).filter(({ curve }) => curve);
  const lines = known.map(({ run, curve }) => {
    const dash = DASHES[Math.max(0, (model.repeats[run] ?? 1) - 1) % DASHES.length];
    return { id: run, path: curve.path, fill: style(model, state, run).fill, dash };
  });
  const early = known.filter(({ run }) => !model.ok[run]);
  const ends = early.map(({ run, curve }) => ({ id: run, ...curve.end, fill: model.status.colours[model.status.codes[run]] }));
  const [x, y] = [0, 1].map((side) => extentOf(known.map(({ curve }) => curve), side));
  const signals = { x_title: "optimizer step", y_title: "loss", x_low: x[0], x_high: x[1], y_low: y[0], y_high: y[1] };
  const message = lines.length ? null : "No loss of the selected runs is in this file.";
  const note = early.length ? `Crosses mark where ${count(early.length, "run")} ended early.` : "";
  return { ...linear(signals), data: { lines, warm: [], ends }, message, note };
};

// One chart of a run over time, or the reason why it is empty: the timed steps, or all since the launch.
const series = (model, one, { values, times, heading, factor }, whole) => {
  const all = new Curve(one?.[times] ?? [], one?.[values] ?? []);
  const from = one?.warm_s ?? 0;
  const timed = all.after(from);
  const shown = whole || !timed.points.length ? all : timed;
  const [x, y] = [0, 1].map((side) => extentOf([shown], side));
  const low = shown === all ? 0 : from;
  const signals = { x_title: "time since start (s)", y_title: heading, x_low: low, x_high: x[1], y_low: y[0], y_high: y[1], y_factor: factor };
  const warm = from && shown === all ? [{ from: 0, to: from }] : [];
  const lines = [{ id: 0, path: shown.path, fill: model.colours.run, dash: SOLID }];
  return { ...linear(signals), data: { lines, warm }, message: shown.points.length ? null : `${heading}: not measured in this run.` };
};

// One chart of the pinned runs by step, on the scale of their timed steps; a pin without steps is undefined.
const pinned = (model, runs, { values, heading, factor }) => {
  const curves = runs.map((run) => (run === undefined ? new Curve([], []) : new Curve(model.series[run].step, model.series[run][values] ?? [])));
  const warm = Math.max(0, ...runs.map((run) => model.series[run]?.warm_steps ?? 0));
  const timed = curves.map((curve) => curve.after(warm));
  const isKnown = (curve) => curve.points.length > 0;
  const [x, y] = [extentOf(curves, 0), extentOf(timed.some(isKnown) ? timed : curves, 1)];
  const signals = { x_title: "optimizer step", y_title: heading, x_low: 0, x_high: x[1], y_low: y[0], y_high: y[1], y_factor: factor };
  const lines = curves.map((curve, id) => ({ id, path: curve.path, fill: PIN_COLOURS[id], dash: SOLID }));
  const data = { lines, warm: warm ? [{ from: 0, to: warm }] : [] };
  return { ...linear(signals), data, message: curves.some(isKnown) ? null : `${heading}: not measured in these runs.` };
};
