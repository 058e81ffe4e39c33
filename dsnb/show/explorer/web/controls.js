// The controls: filters and axes, and the legend, whose entries are filters.

const AXES = { y: "Y axis", x: "X axis", colour: "Colour by", along: "Medians by", y_scale: "Y scale", x_scale: "X scale" };

class Controls {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.boxes = model.axes.map((axis) => this.filter(axis));
    this.selects = Object.keys(AXES).map((name) => this.select(name));
    const reset = button("Reset", () => set({ ...model.defaults, ...model.cleared(this.state), task: this.state.task }));
    const filters = box("dsnb-filters", this.boxes.map(({ node }) => node));
    const fields = box("dsnb-fields", this.selects.map(({ node }) => node), reset);
    this.node = box("dsnb-controls", filters, fields);
  }

  // Several values of one setting can be chosen; none chosen means all.
  filter(axis) {
    const choose = () => this.set({ [axis.name]: axis.values.filter((value, code) => inputs[code].checked) });
    const inputs = axis.values.map(() => element("input", { type: "checkbox", onchange: choose }));
    const labels = axis.labels.map((label, code) => element("label", { class: "dsnb-chip", title: label }, inputs[code], element("span", {}, label)));
    return { axis, inputs, labels, node: element("fieldset", {}, element("legend", {}, axis.title), ...labels) };
  }

  select(name) {
    const title = (value) => this.model.named.get(value)?.heading ?? value;
    const entries = this.model.options[name].map((value) => [value, title(value)]);
    const input = select((value) => this.set({ [name]: value }), entries);
    input.disabled = !entries.length;
    return { name, input, node: field(AXES[name], input) };
  }

  show(state) {
    this.state = state;
    for (const { axis, inputs, labels, node } of this.boxes) {
      const present = this.model.columnsOf(axis, state); // values of other tasks are not offered
      const choices = present.filter((code) => axis.values[code] !== null);
      node.hidden = choices.length < 2;
      axis.values.forEach((value, code) => {
        labels[code].hidden = !present.includes(code);
        inputs[code].checked = state[axis.name].includes(value);
      });
    }
    for (const { name, input } of this.selects) input.value = state[name] ?? "";
    this.selects.find(({ name }) => name === "x_scale").input.disabled = this.model.axis.has(state.x); // settings have no scale
  }
}

// The values that occur among the runs which pass the other filters.
const legendEntries = (model, state) => {
  const axis = model.axis.get(state.colour);
  const present = new Set(model.passing({ ...state, [axis.name]: [] }).map((row) => axis.codes[row]));
  const entry = (label, code) => ({ label, value: axis.values[code], ...look(axis, code) });
  return axis.labels.map(entry).filter((one, code) => present.has(code));
};

// The statuses of runs that are not ok, and what stands for predictions.
const otherEntries = (model, state, runs) => {
  const codes = new Set(runs.filter((run) => !model.ok[run]).map((run) => model.status.codes[run]));
  const { labels, colours } = model.status;
  const entry = (code) => ({ label: `not ok: ${labels[code]}`, shape: "cross", fill: colours[code] });
  const others = [...codes].sort((a, b) => a - b).map(entry);
  const predicted = { label: "predicted, not run", shape: "hollow", fill: model.colours.predicted };
  if (model.predictions.shown(state).length) others.push(predicted);
  return others;
};

// What marks settings in the first chart, if it is drawn. With few settings, the best one is no advice.
const settingEntries = (model, state, { best, front }) => {
  const { words } = model;
  const star = model.task(state)?.few ? words.starOfFew : words.star;
  const entries = [];
  if (best.length) entries.push({ label: star, shape: "star", fill: STAR });
  if (front.length) entries.push({ label: words.ring, shape: "ring", fill: "inherit" });
  return entries;
};

class Legend {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.node = element("ul", { class: "dsnb-legend" });
  }

  show(state, runs, data) {
    const axis = this.model.axis.get(state.colour);
    const focused = [...this.node.querySelectorAll("button")].indexOf(document.activeElement);
    const chosen = state[axis.name];
    // A press shows the runs of this value alone, or those of several; a second press takes it out again.
    const toggle = (value) => this.set({ [axis.name]: axis.values.filter((one) => chosen.includes(one) !== (one === value)) });
    const entries = legendEntries(this.model, state).map(({ label, value, shape, fill }) => {
      const entry = button(mark(shape, fill), () => toggle(value), { "aria-pressed": String(chosen.includes(value)), title: `Only ${label}` });
      entry.append(label);
      return element("li", {}, entry);
    });
    const others = [...otherEntries(this.model, state, runs), ...settingEntries(this.model, state, data)].map(({ label, shape, fill }) => element("li", {}, mark(shape, fill), label));
    this.node.replaceChildren(element("li", { class: "dsnb-soft" }, `${axis.title}:`), ...entries, ...others);
    this.node.querySelectorAll("button")[focused]?.focus();
  }
}
