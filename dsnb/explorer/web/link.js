// The state in the page's address, as what differs from the state that the page was saved with: `#explorer=...`, `#explorer2=...` for a second
// explorer. Nothing leaves the browser with it. An address may come from anywhere: what this page cannot have is ignored.

const isOneOf = (values) => (value) => values.includes(value);
const isRun = (model) => (value) => Number.isInteger(value) && value >= 0 && value < model.runs;
const isExperiment = (model) => (value) => typeof value === "string" && model.experiments.names.includes(value);
const isRange = (value) => Array.isArray(value) && value.length === 2 && value.every(Number.isFinite) && value[0] <= value[1];
const MOST_PINS = 2;
const isWithin = (value, { least, most }) => Number.isFinite(value) && value >= least && value <= most;

// For each control that is neither a setting nor a choice from `options`: whether a value can be set in this page.
// Controls that are not listed may have any value of the kind of their default.
const STATE_CHECKS = {
  base: (model) => (value) => value === null || isExperiment(model)(value),
  run: (model) => (value) => value === null || isRun(model)(value),
  brush: () => (value) => value === null || (isRange(value.x) && isRange(value.y)),
  task: (model) => (value) => model.task({ task: value }) !== undefined,
  objective: (model) => isOneOf(model.decision.objectives),
  gpus_at_hand: ({ decision }) => (value) => value === 0 || (Number.isInteger(value) && isWithin(value, decision.inputs.gpus_at_hand)),
  prices: ({ decision }) => (value) =>
    typeof value === "object" && value !== null && !Array.isArray(value) && Object.values(value).every((price) => isWithin(price, decision.inputs.price)),
  currency: () => (value) => typeof value === "string" && value.length <= 8,
  relevance: () => (value) => Number.isFinite(value) && value >= 0 && value < 1,
  train_tokens: ({ decision }) => (value) => isWithin(value, decision.inputs.train_tokens),
  pins: (model) => (value) =>
    Array.isArray(value) && value.length <= MOST_PINS && value.every((pin) => isRun(model)(pin) || isExperiment(model)(pin)),
  sort: (model) => (value) =>
    value === null || (Array.isArray(value) && value.length === 2 && ["experiment", ...tableColumns(model)].includes(value[0]) &&
      ["ascending", "descending"].includes(value[1])),
  columns: (model) => (value) => Array.isArray(value) && value.every(isOneOf(tableColumns(model))),
};

const sameKind = (value, initial) => {
  if (typeof initial === "object" && initial !== null) {
    const plain = typeof value === "object" && value !== null && Array.isArray(value) === Array.isArray(initial);
    return plain && Object.values(value).every((one) => ["string", "number", "boolean"].includes(typeof one));
  }
  return typeof value === typeof initial;
};

const canBe = (model, name, value) => {
  const axis = model.axis.get(name);
  if (axis) return Array.isArray(value) && value.every(isOneOf(axis.values));
  if (model.options[name]) return model.options[name].includes(value);
  if (STATE_CHECKS[name]) return STATE_CHECKS[name](model)(value);
  return sameKind(value, model.defaults[name]);
};

// What a text from an address sets, without what this page cannot have.
const stateOfText = (model, text) => {
  let given = null;
  try {
    given = JSON.parse(decodeURIComponent(text));
  } catch {
    return {};
  }
  if (typeof given !== "object" || given === null) return {};
  const valid = ([name, value]) => {
    try {
      return Object.hasOwn(model.defaults, name) && canBe(model, name, value);
    } catch {
      return false; // a value of a kind that a check cannot look into
    }
  };
  return Object.fromEntries(Object.entries(given).filter(valid));
};

const textOfState = (model, state) => {
  const differs = ([name, value]) => JSON.stringify(value) !== JSON.stringify(model.state[name]);
  const changed = Object.entries(state).filter(differs);
  return changed.length ? encodeURIComponent(JSON.stringify(Object.fromEntries(changed))) : "";
};

// One explorer's part of the page's address, kept up to date.
class AddressState {
  constructor(model, explorers) {
    const place = explorers.length;
    Object.assign(this, { model, name: place ? `explorer${place + 1}` : "explorer", waiting: null });
  }

  parts() {
    return new Map(location.hash.slice(1).split("&").filter(Boolean).map((part) => {
      const [name, ...value] = part.split("=");
      return [name, value.join("=")];
    }));
  }

  // What the address sets, null if it says nothing about this explorer.
  read() {
    const text = this.parts().get(this.name);
    return text === undefined ? null : stateOfText(this.model, text);
  }

  hash(state) {
    const parts = this.parts();
    parts.set(this.name, textOfState(this.model, state));
    return [...parts].filter(([, value]) => value).map(([name, value]) => `${name}=${value}`).join("&");
  }

  // Browsers limit how often an address may change, so a region that is being drawn is written once it rests.
  write(state) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      const hash = this.hash(state);
      if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
    }, 250);
  }

  link(state) {
    const hash = this.hash(state);
    return `${location.href.split("#")[0]}${hash ? `#${hash}` : ""}`;
  }
}

// A button that copies a text; where the browser forbids that, the text is shown and selected.
const copyButton = (label, text) => {
  const said = element("span", { class: "dsnb-soft", role: "status" });
  const shown = element("input", { type: "text", readonly: true, hidden: true, "aria-label": "Link to this view" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      said.textContent = "Copied.";
    } catch {
      shown.hidden = false;
      shown.value = text();
      shown.select();
      said.textContent = "Copy the selected address.";
    }
  };
  return element("span", { class: "dsnb-copy" }, element("button", { type: "button", onclick: copy }, label), said, shown);
};
