// One run: its status, what its step time and its memory consist of, its steps and samples over time, links to its notebook and
// profile.

// One bar: parts {title, value, colour} as shares of `scale`; what is 0 or unknown is left out.
const stackedBar = (title, parts, scale, text) => {
  const known = parts.filter(({ value }) => value > 0);
  if (!known.length) return null;
  const pieces = known.map(({ title: name, value, colour }) => {
    const piece = element("span", { title: `${name}: ${text(value)}` });
    piece.style.background = colour;
    piece.style.width = `${(100 * value) / scale}%`;
    return piece;
  });
  const items = known.map(({ title: name, value, colour }) => element("li", {}, mark("square", colour), `${name} ${text(value)}`));
  return element(
    "div", { class: "dsnb-stack" }, element("h4", {}, title), element("div", { class: "dsnb-pieces", "aria-hidden": "true" }, ...pieces),
    element("ul", { class: "dsnb-legend" }, ...items),
  );
};

const total = (parts) => parts.reduce((sum, { value }) => sum + (value > 0 ? value : 0), 0);

// The parts of a profiled step, and the communication that nothing else hid.
const stepAnatomy = (model, run) => {
  const measured = model.anatomy.steps[run];
  if (!measured) return null;
  const parts = model.anatomy.stepParts.map(({ name, title, colour }) => ({ title, colour, value: measured[name] ?? 0 }));
  const text = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;
  const scale = total(parts);
  const exposed = { title: "exposed communication", colour: model.colours.exposed, value: measured.exposed_communication_s ?? 0 };
  return [stackedBar("Parts of a profiled step", parts, scale, text), stackedBar("Of it, communication that nothing hides", [exposed], scale, text)];
};

// Memory as measured and in theory, on one scale.
const memoryAnatomy = (model, run) => {
  const measured = (name) => model.columns.get(name)?.[run] ?? NaN;
  const [allocated, reserved, device] = ["peak_allocated_gib", "peak_reserved_gib", "device_memory_gib"].map(measured);
  const own = model.anatomy.theory[model.experiments.codes[run]] ?? [];
  const [first, second, third] = model.anatomy.memoryParts;
  const above = (value, below) => (Number.isNaN(value) ? 0 : value - (Number.isNaN(below) ? 0 : below));
  const bars = [
    ["Memory, measured", [
      { title: "allocated", colour: first.colour, value: above(allocated, 0) },
      { title: "reserved, unused", colour: second.colour, value: above(reserved, allocated) },
      { title: "CUDA context and others", colour: third.colour, value: above(device, Number.isNaN(reserved) ? allocated : reserved) },
    ]],
    ["Memory allocated, in theory", model.anatomy.memoryParts.map(({ title, colour }, part) => ({ title, colour, value: own[part] ?? 0 }))],
  ];
  const scale = Math.max(...bars.map(([, parts]) => total(parts)));
  return bars.map(([title, parts]) => stackedBar(title, parts, scale, (gib) => `${gib.toFixed(2)} GiB`));
};

// Everything that was measured of a run, in its display units.
const runFigures = (model, run, state) => {
  const known = model.figures.filter(({ name }) => !Number.isNaN(model.values(name, state)[run]));
  const items = known.map(({ name }) => element("div", {}, element("dt", {}, model.heading(name)), element("dd", {}, model.number(name, model.values(name, state)[run]))));
  return known.length ? element("dl", { class: "dsnb-facts" }, ...items) : null;
};

class Detail {
  constructor(model, set, pins) {
    Object.assign(this, { model, set, pins });
    this.title = element("h4", { tabindex: "-1" });
    this.facts = element("div");
    this.whole = element("input", { type: "checkbox", onchange: () => this.drawSeries() });
    this.fold = element("label", { class: "dsnb-tick dsnb-soft" }, this.whole, "Show start-up and warm-up, too");
    this.grid = element("div", { class: "dsnb-series" });
    this.charts = model.seriesCharts.map((one) => {
      const box = element("div");
      this.grid.append(box);
      return new Chart(box, model.charts.lines, `${one.heading} of this run over time`, {}, 170);
    });
    this.hint = element("p", { class: "dsnb-soft" }, "Click a point in the first chart, or a run's name in the table below, to see its steps.");
    this.node = element("div", {}, this.hint, this.title, this.facts, this.fold, this.grid);
  }

  show(run, state) {
    const known = run !== null && run < this.model.runs;
    this.hint.hidden = known;
    this.node.closest(".dsnb-card")?.classList.toggle("dsnb-closed", !known);
    for (const node of [this.title, this.facts, this.fold, this.grid]) node.hidden = !known;
    if (!known) return;
    const { model } = this;
    const one = model.series[run];
    const experiment = model.experiments.codes[run];
    this.title.textContent = `${model.experiments.names[experiment]}, run ${model.repeats[run] ?? "?"}`;
    const anatomy = [runFigures(model, run, state), ...(stepAnatomy(model, run) ?? []), ...memoryAnatomy(model, run)];
    this.facts.replaceChildren(...[...this.describe(run, one), ...anatomy, this.buttons(run, experiment)].filter(Boolean));
    this.one = one;
    const drawn = Boolean(one?.step || one?.sample_s);
    this.grid.hidden = !drawn;
    this.fold.hidden = !drawn || !one?.warm_s;
    if (drawn) this.drawSeries();
  }

  drawSeries() {
    const { model, one, whole } = this;
    model.seriesCharts.forEach((part, index) => this.charts[index].draw(series(model, one, part, whole.checked)));
  }

  describe(run, one) {
    const { model } = this;
    const status = model.status.labels[model.status.codes[run]];
    const axes = model.experimentAxes.map((name) => model.axis.get(name)).filter(({ isFilter }) => isFilter);
    const settings = axes.map((axis) => axis.shortLabels[axis.codes[run]]).filter(Boolean).join(", ");
    const lines = [element("p", { class: model.ok[run] ? null : "dsnb-bad" }, `Status: ${status}. ${model.causes[run] ?? ""}`)];
    const advice = model.memory.texts[model.memory.advice[run]];
    if (advice) lines.push(element("p", {}, `To change: ${advice}.`));
    const memory = model.memory.sentences(run);
    if (memory.length) lines.push(element("p", {}, `Memory: ${memory.join("; ")}.`));
    if (settings) lines.push(element("p", {}, settings));
    if (model.notes[run]) lines.push(element("p", {}, `Note: ${model.notes[run]}.`));
    if (model.unusual[run]) lines.push(element("p", {}, element("strong", {}, "Look at this run: "), `${model.unusual[run]}. It counts in every figure.`));
    const note = (text) => lines.push(element("p", { class: "dsnb-soft" }, text));
    if (!one) note(`The steps of this run ${model.leftOut}`);
    else if (!one.step && !one.sample_s) note("This run recorded no steps.");
    if (one?.every > 1) note(`1 in ${one.every} steps is shown.`);
    if (one?.gpus > 1) note(`Averaged over ${one.gpus} GPUs.`);
    return lines;
  }

  buttons(run, experiment) {
    const { model } = this;
    const base = button("Use as baseline", () => this.set({ base: model.experiments.names[experiment] }));
    const pin = this.pins.button(run, "Pin this run");
    const pinSetting = this.pins.button(model.experiments.names[experiment], "Pin its setting");
    const parent = model.files.parents[experiment] ?? model.experiments.names[experiment];
    const links = model.files.kinds.filter((kind) => kind.available[run]).map((kind) => {
      const address = model.link([...parent.split("/"), `run${model.repeats[run]}`, kind.name]);
      return address ? element("a", { href: address, target: "_blank", rel: "noopener" }, kind.title) : null;
    });
    return element("p", { class: "dsnb-bar" }, base, pin, pinSetting, ...links, button("Close", () => this.set({ run: null })));
  }
}
