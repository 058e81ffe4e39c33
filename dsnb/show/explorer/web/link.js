// The state in the page's address: what differs from the one that the page was saved with.

class AddressState {
  // `place` is that of the explorer in the page, from 1: `#explorer=...`, `#explorer2=...`.
  constructor(model, place) {
    const choices = Object.fromEntries(model.axes.map(({ name, values }) => [name, values]));
    const tasks = [...model.tasks, model.allTasks].map((task) => task?.title);
    Object.assign(this, { model, name: place > 1 ? `explorer${place}` : "explorer", choices: { ...choices, ...model.options, task: tasks } });
  }

  // The controls in the address, without unknown names and choices: an address may come from another page, or from an earlier version.
  read() {
    const { formerNames } = this.model;
    const current = (name) => (Object.hasOwn(formerNames, name) ? formerNames[name] : name);
    const renamed = ([name, value]) => [current(name), this.choices[name] && typeof value === "string" ? current(value) : value];
    const isKnown = ([name, value]) => Object.hasOwn(this.model.state, name) && [value].flat().every((one) => this.choices[name]?.includes(one) ?? true);
    try {
      return Object.fromEntries(Object.entries(JSON.parse(new URLSearchParams(location.hash.slice(1)).get(this.name)) ?? {}).map(renamed).filter(isKnown));
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
