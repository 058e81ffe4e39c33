// The state in the page's address, as what differs from the state that the page was saved with: `#explorer=...`, `#explorer2=...` for a second
// explorer. Nothing leaves the browser with it. An address may come from anywhere: what this page cannot have is ignored.

const isOneOf = (values) => (value) => values.includes(value);
const isList = (isItem, most = Infinity) => (value) => Array.isArray(value) && value.every(isItem) && value.length <= most;
const isWithin = ({ least, most, isWhole }) => (value) => Number.isFinite(value) && value >= least && value <= most && (!isWhole || Number.isInteger(value));
const orNull = (check) => (value) => value === null || check(value);

// For each control, whether a value can be set in this page.
const stateChecks = (model) => {
  const isRun = isWithin({ least: 0, most: model.runs - 1, isWhole: true });
  const isExperiment = isOneOf(model.experiments.names);
  const isRange = (value) => isList(Number.isFinite)(value) && value.length === 2 && value[0] <= value[1];
  const isColumn = isOneOf(["experiment", "repeat", "headroom", "n", "failed", "spread", ...model.axis.keys(), ...model.figure.keys()]);
  const { train_tokens, gpus_at_hand, global_batch, price, relevance } = model.inputs;
  return {
    ...Object.fromEntries(model.axes.map(({ name, values }) => [name, isList(isOneOf(values))])),
    ...Object.fromEntries(Object.entries(model.options).map(([name, values]) => [name, isOneOf(values)])),
    task: (value) => model.task({ task: value }) !== undefined,
    base: orNull(isExperiment),
    run: orNull(isRun),
    brush: orNull(({ x, y }) => isRange(x) && isRange(y)),
    objective: isOneOf(Object.keys(model.words.best)),
    train_tokens: isWithin({ ...train_tokens, least: 0 }),
    gpus_at_hand: isWithin({ ...gpus_at_hand, least: 0 }),
    global_batch: isWithin({ ...global_batch, least: 0 }),
    prices: (value) => value?.constructor === Object && Object.values(value).every(isWithin(price)),
    currency: (value) => typeof value === "string" && value.length <= 8,
    relevance: isWithin(relevance),
    pins: isList((pin) => isRun(pin) || isExperiment(pin), 2),
    sort: orNull((value) => Array.isArray(value) && value.length === 2 && isColumn(value[0]) && ["ascending", "descending"].includes(value[1])),
  };
};

// One explorer's part of the page's address, kept up to date.
class AddressState {
  // `place` is that of the explorer in the page, from 1.
  constructor(model, place) {
    Object.assign(this, { model, name: place > 1 ? `explorer${place}` : "explorer", checks: stateChecks(model) });
  }

  // What the address sets, without what this page cannot have.
  read() {
    const { checks, name } = this;
    try {
      const found = JSON.parse(new URLSearchParams(location.hash.slice(1)).get(name)) ?? {};
      return Object.fromEntries(Object.entries(found).filter(([control, value]) => Object.hasOwn(checks, control) && checks[control](value)));
    } catch {
      return {};
    }
  }

  // Browsers limit how often an address may change, so a region that is being drawn is written once it rests.
  write(state) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      const parts = new URLSearchParams(location.hash.slice(1));
      const changed = Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(this.model.state[name]));
      if (changed.length) parts.set(this.name, JSON.stringify(Object.fromEntries(changed)));
      else parts.delete(this.name);
      const hash = String(parts);
      if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
    }, 250);
  }
}
