// The legend of the colours, whose entries are filters, and of the marks of runs that are not ok.

// The values that occur among the runs which pass the other filters.
const legendEntries = (model, state) => {
  const axis = model.axis.get(state.colour);
  const others = { ...state, [axis.name]: [] };
  const present = new Set([...model.filtered(others).map((run) => axis.codes[run]), ...model.predictions.codesOf(axis, others)]);
  return axis.labels
    .map((label, code) => ({ label, code, value: axis.values[code], shape: axis.shapes[code], fill: axis.colours[code] }))
    .filter(({ code }) => present.has(code));
};

// The statuses of runs that are not ok.
const statusEntries = (model, runs) => {
  const codes = new Set(runs.filter((run) => !model.ok[run]).map((run) => model.status.codes[run]));
  const label = (code) => `not ok: ${model.status.labels[code]}`;
  return [...codes].sort((a, b) => a - b).map((code) => ({ label: label(code), shape: "cross", fill: model.status.colours[code] }));
};

class Legend {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.node = element("ul", { class: "dsnb-legend" });
  }

  // A press shows the runs of this value alone, or those of several; a second press takes it out again.
  toggle(axis, value) {
    const chosen = this.state[axis.name];
    const values = chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value];
    this.set({ [axis.name]: axis.values.filter((one) => values.includes(one)) });
  }

  show(state, runs) {
    this.state = state;
    const axis = this.model.axis.get(state.colour);
    const focused = [...this.node.querySelectorAll("button")].indexOf(document.activeElement);
    const entries = legendEntries(this.model, state).map(({ label, value, shape, fill }) => {
      const chosen = state[axis.name].includes(value);
      const content = [mark(shape, fill), label];
      return element("li", {}, element("button", { type: "button", "aria-pressed": String(chosen), title: `Only ${label}`, onclick: () => this.toggle(axis, value) }, ...content));
    });
    const others = [...statusEntries(this.model, runs), ...this.model.predictions.legend(state)];
    const statuses = others.map(({ label, shape, fill, hollow }) => element("li", {}, mark(shape, fill, hollow), label));
    this.node.replaceChildren(element("li", { class: "dsnb-soft" }, `${axis.title}:`), ...entries, ...statuses);
    this.node.querySelectorAll("button")[focused]?.focus();
  }
}
