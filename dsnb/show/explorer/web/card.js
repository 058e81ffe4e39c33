// The card: the answer to the selected task, and its inputs, such as objective, tokens and prices.

const onEntry = (read) => ({ onchange: read, onkeydown: ({ key }) => key === "Enter" && read() }); // JupyterLab may keep Enter

// A field for a number. An invalid entry is ignored, and the browser's message is shown below it.
class NumberField {
  // `rule` is one of `INPUTS` in dsnb/show/explorer/state.py.
  constructor(label, rule, changed) {
    this.rule = rule;
    const events = onEntry(() => this.check() && changed(this.value));
    const limits = { min: rule.least / rule.factor, max: Number((rule.most / rule.factor).toPrecision(15)), step: rule.isWhole ? 1 : "any", required: !rule.mayBeEmpty };
    this.problem = element("span", { class: "dsnb-problem", role: "alert", id: newId() });
    this.input = element("input", { type: "number", "aria-describedby": this.problem.id, ...limits, ...events });
    this.node = field(label, this.input);
    this.node.append(this.problem);
  }

  // The value in the unit of the state, null for an empty field.
  get value() {
    return this.input.value === "" ? null : Number((this.input.valueAsNumber * this.rule.factor).toPrecision(15));
  }

  show(value) {
    this.input.value = value === null ? "" : Number((value / this.rule.factor).toPrecision(15));
    this.problem.textContent = "";
  }

  // Whether the entry is valid; if not, show why.
  check() {
    const { validity, validationMessage } = this.input;
    this.problem.textContent = validity.valid ? "" : `Not used: ${validationMessage}`;
    return validity.valid;
  }
}

const ALTERNATIVES = 2; // to the recommended setting, whose files the page has, too

class Card {
  constructor(model, set) {
    Object.assign(this, { model, set });
    const number = (name, label, read) => new NumberField(label, model.inputs[name], (value) => set(read(value)));
    const open = (code) => set({ task: (model.tasks[code] ?? model.allTasks).title });
    const models = model.menu.map((entry) => [entry.tasks[0][0], entry.model]); // its first task
    this.models = select(open, [[-1, "All tasks"], ...models]);
    this.tasks = select(open);
    this.kind = field("Task", this.tasks);
    const tasks = box("dsnb-fields dsnb-tasks", field("Model", this.models), this.kind);
    this.text = element("div", { class: "dsnb-answer", role: "status" });
    const titled = ([value, text]) => [value, fill(text, model)];
    this.objective = select((objective) => set({ objective }), Object.entries(model.words.best).map(titled));
    this.tokens = number("train_tokens", "Training tokens (billions)", (entered) => ({ train_tokens: entered === this.usual ? 0 : (entered ?? 0) }));
    this.tokens.input.placeholder = "as usual";
    this.tokens.input.title = "Assumed unless you enter a number: 20 tokens per parameter, or 50 million with LoRA or pretrained weights";
    this.gpus = number("gpus_at_hand", `${model.unit === "rank" ? "Rank" : "GPU"}s at hand`, (gpus) => ({ gpus_at_hand: gpus ?? 0 }));
    this.gpus.input.placeholder = "any";
    this.batch = select((batch) => set({ global_batch: Number(batch) }));
    this.batchField = field("Hold the global batch (sequences)", this.batch);
    this.currency = element("input", { type: "text", maxlength: "8", size: "4", ...onEntry(() => set({ currency: this.currency.value })) });
    this.kinds = [...new Set(model.tasks.flatMap(({ candidates }) => candidates.map(({ kind }) => kind)))];
    this.prices = this.kinds.map((kind) => number("price", `Price of an hour (${kind})`, (price) => ({ prices: this.priced(kind, price) })));
    this.relevance = number("relevance", "Smallest relevant difference (%)", (relevance) => ({ relevance }));
    const prices = this.prices.map(({ node }) => node);
    const objective = field("Objective", this.objective);
    const sizes = [this.tokens.node, this.gpus.node, this.batchField];
    const currency = field("Currency", this.currency);
    this.kicker = element("strong", { class: "dsnb-kicker" });
    const asked = element("summary", {}, fill(model.words.inputs, model));
    const form = box("dsnb-fields", objective, sizes, prices, currency, this.relevance.node);
    this.form = element("details", { class: "dsnb-fold" }, asked, form);
    this.remarks = element("ul", { class: "dsnb-remarks" });
    [this.basisTitle, this.basisText] = [element("summary"), soft()];
    this.basis = element("details", { class: "dsnb-fold dsnb-basis" }, this.basisTitle, this.basisText, this.remarks);
    this.takeAway = element("details", { class: "dsnb-fold" });
    this.title = element("h3");
    const toolbar = box("dsnb-toolbar", model.menu.length ? tasks : this.title, this.kicker, this.form);
    const parts = [toolbar, this.text, box("dsnb-toolbar", this.basis, this.takeAway)];
    const region = { class: "dsnb-card dsnb-decision", "aria-label": "The answer" };
    this.node = element("section", region, parts);
  }

  // The prices with that of one kind of hardware changed; without one, it is the usual price.
  priced(kind, price) {
    const { [kind]: _, ...others } = this.state.prices;
    if (price === priceOf(this.model, this.state, kind)) return this.state.prices; // the assumed one stays assumed
    return price === null ? others : { ...others, [kind]: price };
  }

  show(state) {
    this.state = state;
    const { model } = this;
    const task = model.task(state);
    const code = model.tasks.indexOf(task);
    const entry = model.menu.find(({ tasks }) => tasks.some(([own]) => own === code));
    const tasks = entry?.tasks ?? [];
    this.models.value = tasks[0]?.[0] ?? -1;
    this.kind.hidden = !entry;
    this.tasks.replaceChildren(...options(tasks));
    this.tasks.value = code;
    this.form.hidden = !task;
    this.takeAway.hidden = true;
    this.title.hidden = !task?.title;
    this.kicker.textContent = "";
    this.basis.hidden = !task;
    if (!task) {
      this.text.replaceChildren(element("p", {}, model.words.noRuns));
      return;
    }
    this.showQuestion(state, task);
    const remarks = task.remarks ?? [];
    this.remarks.replaceChildren(...remarks.map((remark) => element("li", {}, remark)));
    this.basisTitle.textContent = fill(model.words.basis, { remarks: remarks.length || "" });
    this.answer = task === model.allTasks ? null : new Answer(model, task, state);
    this.basis.hidden = !this.answer;
    if (this.answer) this.showAnswer(task, { ...this.answer.words(), worth: model.predictions.worthMeasuring(this.answer) });
    else this.text.replaceChildren(element("p", {}, model.words.allTasks));
  }

  showQuestion(state, task) {
    const { model } = this;
    const candidates = (task === model.allTasks ? model.tasks : [task]).flatMap((one) => one.candidates);
    const shownKinds = candidates.map(({ kind }) => kind);
    this.objective.value = state.objective;
    this.usual = task.tokens ?? null; // of all tasks, each has its own
    this.tokens.show(state.train_tokens || this.usual);
    this.gpus.show(state.gpus_at_hand || null);
    const batches = [...new Set(candidates.map(({ global_batch }) => global_batch))].filter(Boolean).sort((a, b) => a - b);
    const held = batches.map((value) => [value, fixed(value, 0)]);
    this.batch.replaceChildren(...options([[0, "any"], ...held]));
    this.batch.value = state.global_batch;
    this.batchField.hidden = batches.length < 2 && !state.global_batch;
    this.currency.value = state.currency;
    this.relevance.show(state.relevance);
    this.kinds.forEach((kind, index) => {
      this.prices[index].show(priceOf(model, state, kind));
      this.prices[index].node.hidden = !shownKinds.includes(kind);
    });
  }

  showAnswer(task, { tiles, ...words }) {
    const isShort = tiles && !task.few;
    const lines = [!isShort && "headline", "tiles", !tiles && "costs", "gain", "following", "note", "edge", "worth"];
    const said = lines.filter((name) => words[name] || (name === "tiles" && tiles));
    const part = (name) => (name === "tiles" ? tileList(tiles) : element("p", { class: `dsnb-${name}` }, words[name]));
    this.title.textContent = task.title;
    this.text.replaceChildren(...said.map(part));
    this.kicker.textContent = words.kicker ?? "";
    this.basisText.textContent = words.basis ?? "";
    const others = (this.answer?.options ?? []).slice(1).filter((one) => one.take);
    this.showTake(words, others.slice(0, ALTERNATIVES));
  }

  // The files for other programs, as `_take` in dsnb/show/render/decision_data.py packs them.
  filesOf({ take, experiment }, of) {
    const { texts, words, experiments } = this.model;
    if (!take) return [];
    const [names, ...packed] = take.files.map((place) => texts[place]);
    const setting = take.name ?? experiments.names[experiment];
    return names.split(" ").map((name, index) => {
      const lines = placesOf(packed[index]).map((line) => `${texts[line]}\n`);
      const text = lines.join("").replaceAll(words.name, () => setting);
      return folded(name, copied(`${name}${of}`, text));
    });
  }

  // What the setting, and two alternatives, are trained with again, here and in other programs.
  showTake(best, others) {
    const { texts } = this.model;
    const take = best.take ?? {};
    const entry = take.entry && `{${take.entry.map((part) => texts[part]).join(", ")}}`;
    const blocks = [
      ["Entry of a params file", this.model.say("take.entry", { entry })],
      ["Command line", this.model.say("take.command", { entry })],
    ].filter(([, text]) => text).map(([title, text]) => element("div", {}, element("h3", {}, title), copied(title, text)));
    if (take.assumed) blocks.push(soft(take.assumed));
    blocks.push(...this.filesOf(best, ""));
    for (const other of others) {
      const title = `Alternative: ${other.setting || this.model.experiments.names[other.experiment]}`;
      blocks.push(folded(title, ...this.filesOf(other, `, ${title}`)));
    }
    this.takeAway.replaceChildren(element("summary", {}, "Take it away"), ...blocks);
    this.takeAway.hidden = !blocks.length;
  }
}

// Label, figure and remark of each tile.
const tileList = (tiles) => {
  const tile = ([label, figure, remark]) => element("div", {}, element("dt", {}, label), element("dd", {}, figure), element("dd", { class: "dsnb-soft" }, remark));
  return element("dl", { class: "dsnb-tiles" }, ...tiles.map(tile));
};

// A part that is closed at first.
const folded = (title, ...children) => element("details", { class: "dsnb-fold" }, element("summary", {}, title), ...children);

// A text with a button that copies it, or marks it where the browser lets no page copy.
const copied = (title, text) => {
  const shown = element("pre", { class: "dsnb-take" }, text);
  const copy = button("Copy", () => {
    getSelection().selectAllChildren(shown);
    navigator.clipboard?.writeText(text).then(() => (copy.textContent = "Copied"), () => {});
  }, { "aria-label": `Copy: ${title}` });
  return box("dsnb-copied", shown, copy);
};
