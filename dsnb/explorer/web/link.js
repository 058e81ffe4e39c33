// The state in the page's address, as what differs from the state that the page was saved with: `#explorer=...`, `#explorer2=...` for a second
// explorer. Nothing leaves the browser with it. An address may come from anywhere: what this page cannot have is ignored.

const isOneOf = (values) => (value) => values.includes(value);
const isList = (isItem) => (value) => Array.isArray(value) && value.every(isItem);
const isWithin = ({ least, most, isWhole }) => (value) => Number.isFinite(value) && value >= least && value <= most && (!isWhole || Number.isInteger(value));
const orNull = (check) => (value) => value === null || check(value);

// For each control, whether a value can be set in this page.
const stateChecks = (model) => {
  const isRun = isWithin({ least: 0, most: model.runs - 1, isWhole: true });
  const isExperiment = isOneOf(model.experiments.names);
  const isRange = (value) => isList(Number.isFinite)(value) && value.length === 2 && value[0] <= value[1];
  const { train_tokens, gpus_at_hand, price, relevance } = model.inputs;
  return {
    ...Object.fromEntries(model.axes.map(({ name, values }) => [name, isList(isOneOf(values))])),
    ...Object.fromEntries(Object.entries(model.options).map(([name, values]) => [name, isOneOf(values)])),
    task: (value) => model.task({ task: value }) !== undefined,
    base: orNull(isExperiment),
    run: orNull(isRun),
    brush: orNull(({ x, y }) => isRange(x) && isRange(y)),
    objective: isOneOf(Object.keys(model.words.best)),
    train_tokens: isWithin(train_tokens),
    gpus_at_hand: isWithin({ ...gpus_at_hand, least: 0 }),
    prices: (value) => value.constructor === Object && Object.values(value).every(isWithin(price)),
    currency: (value) => typeof value === "string" && value.length <= 8,
    relevance: isWithin(relevance),
    pins: (value) => isList((pin) => isRun(pin) || isExperiment(pin))(value) && value.length <= 2,
    sort: orNull(([name, direction, ...more]) => ["experiment", "repeat", "headroom", ...model.axis.keys(), ...model.figure.keys()].includes(name) && ["ascending", "descending"].includes(direction) && !more.length),
  };
};

// What a text from an address sets, without what this page cannot have.
const stateOfText = (model, text) => {
  const checks = stateChecks(model);
  const isValid = ([name, value]) => {
    try {
      return Object.hasOwn(checks, name) && checks[name](value);
    } catch {
      return false; // a value of a kind that a check cannot look into
    }
  };
  try {
    return Object.fromEntries(Object.entries(JSON.parse(text) ?? {}).filter(isValid));
  } catch {
    return {};
  }
};

const textOfState = (model, state) => {
  const differs = ([name, value]) => JSON.stringify(value) !== JSON.stringify(model.state[name]);
  const changed = Object.entries(state).filter(differs);
  return changed.length ? JSON.stringify(Object.fromEntries(changed)) : "";
};

// One explorer's part of the page's address, kept up to date.
class AddressState {
  constructor(model, explorers) {
    const place = explorers.length;
    Object.assign(this, { model, name: place ? `explorer${place + 1}` : "explorer", waiting: null });
  }

  // What the address sets, null if it says nothing about this explorer.
  read() {
    const text = new URLSearchParams(location.hash.slice(1)).get(this.name);
    return text === null ? null : stateOfText(this.model, text);
  }

  hash(state) {
    const parts = new URLSearchParams(location.hash.slice(1));
    const text = textOfState(this.model, state);
    if (text) parts.set(this.name, text);
    else parts.delete(this.name);
    return String(parts);
  }

  // Browsers limit how often an address may change, so a region that is being drawn is written once it rests.
  write(state) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      const hash = this.hash(state);
      if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
    }, 250);
  }
}
