// What each chart shows of a selection: runs in, marks out. Drawing itself is the business of chart.js.

const GREY = "#9aa3ad66";

// How a run, or an experiment's first run, is marked: by the axis that is chosen for colour.
const style = (model, state, run) => {
  const axis = model.axis.get(state.colour);
  const code = axis.codes[run];
  return { fill: axis.colours[code], shape: axis.shapes[code] };
};

// Titles, domains and labels of the two axes; a scale is logarithmic only where every value allows it.
const frame = (model, state, x, y, xs, ys) => {
  const axis = model.axis.get(x);
  const types = {};
  for (const [side, name, values] of [["x", x, xs], ["y", y, ys]]) {
    const possible = !model.axis.get(name) && values.every((value) => !(value <= 0));
    types[side] = state[`${side}_scale`] === "log" && possible ? "log" : "linear";
  }
  const across = axis ? [-0.5, axis.values.length - 0.5] : domain(xs, types.x === "log");
  const up = domain(ys, types.y === "log");
  const signals = {
    x_title: model.heading(x), y_title: y ? model.heading(y) : "", x_labels: axis ? axis.labels : null,
    x_low: across[0], x_high: across[1], y_low: up[0], y_high: up[1],
  };
  return { signals, types };
};

// Runs of one value of an axis are spread a little, the same way each time, so that they do not hide each other.
const SPREAD = 0.3;
const spreadOut = (run, width = SPREAD) => (((run * 0.61803398875) % 1) - 0.5) * width;

// Speed against memory, or whatever was chosen: runs, the front that nothing beats, and runs that are not ok.
const scatter = (model, state, kept, selected, front) => {
  const nothing = new Float64Array(model.runs).fill(NaN);
  const [x, y] = [model.values(state.x, state), state.y ? model.values(state.y, state) : nothing];
  const nominal = model.axis.has(state.x);
  const chosen = new Set(selected);
  const measured = kept.filter((run) => !Number.isNaN(x[run]) && !Number.isNaN(y[run]));
  const { signals, types } = frame(model, state, state.x, state.y, measured.map((run) => x[run]), measured.map((run) => y[run]));
  const floor = signals.y_high - signals.y_low;
  if (types.y === "linear") signals.y_low -= 0.08 * floor; // room for the lane of what has no figure
  else signals.y_low /= (signals.y_high / signals.y_low) ** 0.08;
  const points = measured.map((run) => {
    const mark = style(model, state, run);
    return { id: run, x: x[run] + (nominal ? spreadOut(run) : 0), y: y[run], ...mark, fill: chosen.has(run) ? mark.fill : GREY };
  });
  points.sort((a, b) => (b.fill === GREY) - (a.fill === GREY));
  const lost = kept.filter((run) => !model.ok[run]);
  const place = (share) =>
    types.x === "log" ? signals.x_low * (signals.x_high / signals.x_low) ** share : signals.x_low + share * (signals.x_high - signals.x_low);
  const lane = lost.map((run, index) => ({
    id: run,
    x: nominal ? x[run] + spreadOut(run) : place((index + 0.5) / lost.length),
    fill: chosen.has(run) ? model.status.colours[model.status.codes[run]] : GREY,
  }));
  const named = front.map((point, order) => ({ ...point, order, number: String(order + 1), id: `experiment ${point.experiment}` }));
  const message = points.length || lost.length ? null : kept.length ? "No run has these figures." : "No run is left: choose fewer filters.";
  const note = lost.length && !nominal ? "Crosses have no figures: where they lie along the axis says nothing." : "";
  return { signals, types, data: { points, lost: lane, front: named }, message, note };
};

// Experiments along one axis: medians, the range of their runs, every run; lines join what is otherwise equal.
const medians = (model, state, selected, groups) => {
  const axis = model.axis.get(state.along);
  const y = state.y ? model.values(state.y, state) : new Float64Array(model.runs).fill(NaN);
  const colours = model.axis.get(state.colour);
  const side = (run) => {
    const count = colours.values.length;
    return state.colour === state.along || count < 2 ? 0 : (colours.codes[run] / (count - 1) - 0.5) * 0.5;
  };
  const lost = [];
  const marks = [];
  const equal = new Map();
  for (const [experiment, runs] of groups) {
    const spread = model.spread(y, runs);
    const bad = runs.find((run) => !model.ok[run]);
    if (!spread.n && bad !== undefined) {
      lost.push({ id: bad, x: axis.codes[bad] + side(bad), fill: model.status.colours[model.status.codes[bad]] });
    }
    if (!spread.n) continue;
    const along = model.experimentAxes.indexOf(state.along);
    const joined = model.settings[experiment].filter((code, index) => index !== along).join(" ");
    const at = axis.codes[runs[0]] + side(runs[0]);
    marks.push({ id: `experiment ${experiment}`, x: at, y: spread.median, low: spread.low, high: spread.high, ...style(model, state, runs[0]) });
    if (along >= 0) equal.set(joined, [...(equal.get(joined) ?? []), marks.at(-1)]);
  }
  const joints = [];
  for (const chain of equal.values()) {
    chain.sort((a, b) => a.x - b.x);
    chain.slice(1).forEach((to, index) => joints.push({ x: chain[index].x, y: chain[index].y, x2: to.x, y2: to.y, fill: to.fill }));
  }
  const runs = selected
    .filter((run) => !Number.isNaN(y[run]))
    .map((run) => ({ id: run, x: axis.codes[run] + side(run) + spreadOut(run, 0.08), y: y[run], ...style(model, state, run) }));
  const { signals, types } = frame(model, { ...state, x_scale: "linear" }, state.along, state.y, [], runs.map((run) => run.y));
  signals.y_low -= types.y === "linear" ? 0.08 * (signals.y_high - signals.y_low) : 0;
  const message = runs.length || lost.length ? null : "No selected run has this figure.";
  return { signals, types, data: { runs, medians: marks, joints, lost }, message };
};

const plain = (signals) => ({ signals: { x_labels: null, ...signals }, types: { x: "linear", y: "linear" } });

// The losses of the selected runs whose steps are in this page.
const losses = (model, state, selected) => {
  const runs = selected.filter((run) => model.series[run]?.loss?.some((value) => value !== null));
  const lines = runs.flatMap((run) => {
    const { fill } = style(model, state, run);
    return model.series[run].step.map((step, index) => ({ id: run, x: step, y: model.series[run].loss[index] ?? NaN, fill }));
  });
  const [x, y] = [domain(lines.map((point) => point.x)), domain(lines.map((point) => point.y))];
  const signals = { x_title: "optimizer step", y_title: "loss", x_low: x[0], x_high: x[1], y_low: y[0], y_high: y[1] };
  const message = lines.length ? null : "No selected run has written a loss into this file.";
  return { ...plain(signals), data: { lines, warm: [] }, message, shown: runs.length };
};

const SERIES = [
  { values: "step_time_ms", times: "t_s", title: "step time (ms)" },
  { values: "loss", times: "t_s", title: "loss" },
  { values: "allocated_gib", times: "t_s", title: "memory allocated (GiB)" },
  { values: "memory_used_gib", times: "sample_s", title: "memory on device (GiB)" },
  { values: "util_pct", times: "sample_s", title: "utilization (%), waiting in NCCL counted as busy" },
  { values: "power_w", times: "sample_s", title: "power (W), averaged over 1 s" },
];

// One run over time: what of a series is drawn, or why nothing is.
const series = (one, { values, times, title }) => {
  const lines = (one?.[values] ?? [])
    .map((value, index) => ({ id: 0, x: one[times][index] ?? NaN, y: value ?? NaN, fill: "#3a97d4" }))
    .filter((point) => !Number.isNaN(point.x) && !Number.isNaN(point.y));
  const [x, y] = [domain([0, ...lines.map((point) => point.x)]), domain(lines.map((point) => point.y))];
  const signals = { x_title: "seconds since the start", y_title: title, x_low: 0, x_high: x[1], y_low: y[0], y_high: y[1] };
  const warm = one?.warm_s ? [{ from: 0, to: one.warm_s }] : [];
  return { ...plain(signals), data: { lines, warm }, message: lines.length ? null : `${title}: not measured in this run.` };
};
