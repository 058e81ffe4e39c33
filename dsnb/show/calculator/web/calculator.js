// The calculator: what is asked, and the answer that was computed for it. Answers are looked up; only their tokens and price are filled in.

const SECONDS = 3600;
const UNITS = { k: 1e3, m: 1e6, b: 1e9, t: 1e12 };

// A number with the digits that its relative error supports (`supported` in number_text.py).
const supported = (value, error, most = 3) => {
  const digits = error > 0 ? Math.min(most, Math.max(1, Math.ceil(1 - Math.log10(error / 2)))) : most;
  return significant(Number(value.toPrecision(digits)), digits);
};

// Hours, and the range around them, in the largest unit of which there is at least one (`duration_within` in number_text.py).
const duration = ({ words }, hours, low, high) => {
  const [size, noun] = words.hours.find(([least]) => hours >= least) ?? words.hours.at(-1);
  const text = supported(hours / size, (high - low) / 2 / hours);
  return { time: `${text} ${noun}${text === "1" ? "" : "s"}`, times: low < high ? span(low / size, high / size) : "" };
};

// A range with as many digits as it supports (`span` in number_text.py).
const span = (low, high) => {
  if (!(low > 0 && low < high && high < Infinity)) return "";
  const place = Math.floor(Math.log10(Math.min((high - low) / 2, low)));
  const size = 10 ** place;
  const digits = Math.max(-place, 0);
  return `${fixed(Math.floor(low / size) * size, digits)} to ${fixed(Math.ceil(high / size) * size, digits)}`;
};

// A number of tokens as people write it: 300B, 1.5T, 300e9; NaN if it is none.
const tokensOf = (text) => {
  const [, number, unit] = /^([\d.,]+(?:e\d+)?)\s*([kmbt])?\w*$/i.exec(text.trim()) ?? [];
  return Number(number?.replaceAll(",", "")) * (UNITS[unit?.toLowerCase()] ?? 1);
};

class Calculator {
  constructor(root, data) {
    Object.assign(this, { root, ...data });
    this.offsets = [];
    let offset = 0;
    for (const { lengths } of this.models) {
      this.offsets.push(offset);
      offset += this.trained.length * lengths.length * this.gpus.length * this.counts.length;
    }
    this.controls = this.form();
    this.result = element("div", { class: "calc-result", "aria-live": "polite" });
    root.replaceChildren(this.controls.form, this.result);
    addEventListener("hashchange", () => this.read());
    this.read();
  }

  form() {
    const changed = () => this.show();
    const list = element("datalist", { id: "calc-models" }, this.models.map(({ name, hub }) => element("option", { value: name }, hub)));
    const model = element("input", { type: "search", list: "calc-models", autocomplete: "off", spellcheck: "false", onchange: changed, onfocus: ({ target }) => target.select() });
    const inputs = {
      model,
      gpu: select(changed, this.gpus.map((name) => [name, name])),
      gpus: select(changed, this.counts.map((number) => [String(number), String(number)])),
      seq_len: select(changed),
      trained: select(changed, this.trained.map(({ name, words }) => [name, words])),
      tokens: element("input", { type: "text", autocomplete: "off", onchange: changed }),
      price: element("input", { type: "number", min: "0", step: "any", inputmode: "decimal", onchange: changed }),
    };
    const fields = Object.entries(this.words.fields).map(([name, label]) => field(label, inputs[name]));
    const form = element("form", { class: "calc-form", onsubmit: (event) => event.preventDefault() }, fields, list);
    return { form, ...inputs };
  }

  // The model of a text: its name, its name on the hub, or the only one that has the text in either.
  find(text) {
    const asked = text.trim().toLowerCase();
    const names = this.models.map(({ name, hub }) => [name.toLowerCase(), hub.toLowerCase()]);
    const exact = names.findIndex((both) => both.includes(asked));
    const near = names.flatMap((both, place) => (asked && both.some((one) => one.includes(asked)) ? [place] : []));
    return exact >= 0 ? exact : (near.length === 1 ? near[0] : -1);
  }

  read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const { controls } = this;
    const first = { model: this.models[this.start.model].name, ...this.start.inputs };
    let unknown = "";
    for (const name of Object.keys(this.words.fields)) {
      const value = given.get(name) ?? first[name] ?? "";
      if (name === "seq_len") this.fillLengths(this.find(controls.model.value));
      if (controls[name].tagName !== "SELECT") controls[name].value = value;
      else if (!this.choose(controls[name], String(value))) unknown = fill(this.words.unknownChoice, { choice: `${this.words.fields[name]}: ${value}` });
    }
    this.show(unknown);
  }

  // Choose the option of a text, or the only one that ends with it, as "RTX 4090" with "4090"; return whether there is one.
  choose(list, text) {
    const values = [...list.options].map(({ value }) => value);
    const ends = values.filter((value) => value.toLowerCase().endsWith(` ${text.toLowerCase()}`));
    const near = ends.length === 1 ? ends[0] : text;
    const value = values.includes(text) ? text : near;
    const isKnown = values.includes(value);
    if (isKnown) list.value = value;
    return isKnown || !text;
  }

  fillLengths(place) {
    const { seq_len: lengths } = this.controls;
    const before = lengths.value;
    const numbers = this.models[place]?.offered ?? [];
    lengths.replaceChildren(...options([...numbers].sort((a, b) => a - b).map((number) => [String(number), fixed(number, 0)])));
    lengths.value = numbers.includes(Number(before)) ? before : String(numbers[0] ?? "");
  }

  // What is asked, with the model by its place.
  get asked() {
    const { controls } = this;
    const place = this.find(controls.model.value);
    if (place >= 0 && controls.seq_len.dataset.model !== String(place)) {
      this.fillLengths(place);
      controls.seq_len.dataset.model = String(place);
    }
    return {
      place,
      model: this.models[place],
      gpu: controls.gpu.value,
      gpus: Number(controls.gpus.value),
      seq_len: Number(controls.seq_len.value),
      trained: controls.trained.value,
      tokens: controls.tokens.value.trim() ? tokensOf(controls.tokens.value) : null,
      price: Number(controls.price.value) || 0,
    };
  }

  usualTokens({ model, trained, tokens }) {
    return tokens ?? model.tokens[trained];
  }

  record({ place, model, gpu, gpus, seq_len, trained }) {
    const ways = this.trained.findIndex(({ name }) => name === trained);
    const row = (ways * model.lengths.length + model.lengths.indexOf(seq_len)) * this.gpus.length + this.gpus.indexOf(gpu);
    const cell = this.offsets[place] + row * this.counts.length + this.counts.indexOf(gpus);
    const values = Object.entries(this.columns).map(([name, { values: known, places }]) => [name, known[places[cell]]]);
    const record = Object.fromEntries(values);
    if (record.no === undefined) return null;
    const { rate } = record;
    return { ...record, low: record.low * rate, high: record.high * rate, least: record.least * gpus / rate };
  }

  times(asked, record) {
    const tokens = this.usualTokens(asked);
    const hours = (rate) => tokens / rate / SECONDS;
    const all = asked.gpus * hours(record.rate);
    const within = duration(this, hours(record.rate), hours(record.high || NaN), hours(record.low || NaN));
    const paid = asked.price ? supported(asked.price * all, record.error / 100) : "";
    const cost = paid && fill(this.words.cost, { currency: "$", amount: paid, price: fixed(asked.price, 2), unit: "GPU" });
    const bound = record.tight ? { least: this.words.ofLines.bounds.least, times: "" } : {};
    return { ...within, ...bound, hours: supported(all, record.error / 100), unit: "GPU", cost, paid };
  }

  // The lines of an answer, each a role and its cells, as `data.lines` has them.
  lines(asked, record) {
    const { lines } = this.words;
    const line = (role, facts) => [role, lines[role].map((template) => fill(template, facts))];
    const tokens = this.usualTokens(asked);
    const adapted = this.trained.find(({ name }) => name === asked.trained).title;
    const place = fill(this.words.place, { gpus: asked.gpus, gpu: asked.gpu });
    const title = line("title", { model: asked.model.name, trained: adapted, place, tokens: amount(this, tokens), batch: fixed(record.batch, 0), length: fixed(asked.seq_len, 0) });
    if (record.no) return [title, ...record.no.split("\n").map((text) => ["note", [text]])];
    const kept = (role, label, name, number) => [role, [label, ...[...Array(number).keys()].map((column) => record[`${name}.${column}`])]];
    const warnings = this.warnings(asked, record);
    const shown = [title, line("warned", { warnings: warnings && warnings[0].toUpperCase() + warnings.slice(1) })].filter(([, cells]) => cells[0]);
    const figures = [line("train", { setting: record["train.0"] }), line("time", this.times(asked, record))];
    for (const role of ["speed", "memory"]) figures.push(kept(role, lines[role][0], role, 3));
    for (const number of [1, 2, 3]) figures.push(kept("alternative", number === 1 ? this.words.or : " ", `alternative${number}`, 4));
    const certainty = line("predicted", { nearest: record.nearest, ranges: record.tight ? "" : this.words.ofLines.ranges });
    return [...shown, ...figures.filter(([, cells]) => cells[1]), certainty];
  }

  warnings(asked, record) {
    const { words } = this;
    const tokens = this.usualTokens(asked);
    const warnings = [record.tight ? words.tight : "", record.warnings];
    if (tokens / record.rate / SECONDS / 24 > words.maxDays) {
      const needed = fixed(Math.ceil(Number((record.least * tokens / SECONDS / 24 / words.goalDays).toFixed(6))), 0);
      warnings.unshift(fill(words.tooSlow, { needed, unit: "GPU" }));
    }
    return joined(warnings, "; ");
  }

  command(asked) {
    const { controls } = this;
    const parts = ["dsnb recommend", asked.model.name, `--gpu '${asked.gpu}'`.replace(/'(\S+)'/, "$1"), `--gpus ${asked.gpus}`, `--seq-len ${asked.seq_len}`];
    if (asked.gpus > this.words.nodeGpus) parts.push(`--link ${this.words.network}`);
    for (const [key, value] of Object.entries(this.trained.find(({ name }) => name === asked.trained).settings)) parts.push(`--set ${key}=${value}`);
    if (asked.tokens) parts.push(`--tokens ${controls.tokens.value.trim().replace(/\s/g, "")}`);
    if (asked.price) parts.push(`--price ${asked.price}`);
    return parts.join(" ");
  }

  show(unknown = "") {
    const { asked, controls, words } = this;
    controls.tokens.placeholder = asked.model ? amount(this, asked.model.tokens[asked.trained]) : "";
    const problems = { model: asked.model ? "" : words.unknownModel, tokens: asked.tokens === null || asked.tokens > 0 ? "" : words.wrongTokens };
    for (const [name, problem] of Object.entries(problems)) controls[name].setCustomValidity(problem);
    const problem = problems.model || problems.tokens || unknown;
    this.result.replaceChildren(...(problem ? [element("p", { class: "calc-problem", role: "alert" }, problem)] : this.answer(asked)));
    if (!problem) this.write();
  }

  write() {
    const values = Object.keys(this.words.fields).map((name) => [name, this.controls[name].value.trim()]).filter(([, value]) => value);
    history.replaceState(null, "", `#${new URLSearchParams(values)}`);
    const { model } = this.asked;
    document.title = fill(this.words.pageTitle, { model: model.name });
  }

  answer(asked) {
    const record = this.record(asked);
    const command = element("pre", { class: "calc-command", tabindex: "0", "aria-label": this.words.command }, this.command(asked));
    const more = element("p", {}, element("a", { href: `train/${asked.model.page}` }, fill(this.words.ofModel, { model: asked.model.name })));
    const further = [element("h3", {}, this.words.command), command, this.linked ? more : ""].filter(Boolean);
    if (!record) return [section(asked.model.name, element("p", {}, this.words.missing), ...further)];
    return [section(...this.cardParts(asked, record), ...further), this.others(asked)];
  }

  cardParts(asked, record) {
    const [[, [title]], ...lines] = this.lines(asked, record);
    const isRow = ([, cells]) => cells.length > 1;
    const first = lines.findIndex(isRow);
    const rows = lines.filter(isRow).map(([role, cells]) => {
      const [label, ...others] = cells.map((cell) => cell.trim());
      const last = others.pop();
      const columns = others.map((text) => element("td", {}, text));
      const head = label ? element("th", { scope: "row" }, label) : element("td");
      return element("tr", { class: `calc-${role}` }, head, ...columns, element("td", { colspan: String(4 - others.length) }, last));
    });
    const notes = (some) => some.filter((one) => !isRow(one)).map(([role, [text]]) => element("p", { class: `calc-${role}` }, text));
    if (first < 0) return [title, ...notes(lines)];
    const table = element("table", { class: "calc-lines" }, element("tbody", {}, rows));
    return [title, ...notes(lines.slice(0, first)), table, ...notes(lines.slice(first))];
  }

  // The same training on other numbers of this GPU, and on as many of other GPUs.
  others(asked) {
    const columns = this.words.columns.filter((name) => asked.price || name !== this.words.costColumn);
    const heads = () => columns.map((text) => heading(text, true));
    const row = (title, other) => {
      const record = this.record(other);
      if (!record) return null;
      if (record.no) return tableRow(title, [this.words.doesNotFit, ...columns.slice(2).map(() => "")]);
      const { least, time, times, hours, paid } = this.times(other, record);
      const atLeast = (text) => joined([least, text]);
      const cost = asked.price ? [atLeast(`$${paid}`)] : [];
      return tableRow(title, [atLeast(time), times, atLeast(hours), ...cost, record["memory.0"], record["train.0"]]);
    };
    const counts = this.counts.map((gpus) => row(`${gpus} ${asked.gpu}`, { ...asked, gpus })).filter(Boolean);
    const gpus = this.gpus.map((gpu) => row(gpu, { ...asked, gpu })).filter(Boolean);
    const tables = [[this.words.otherCounts, counts], [fill(this.words.otherGpus, { gpus: asked.gpus }), gpus]];
    return element("div", {}, tables.filter(([, rows]) => rows.length > 1).map(([title, rows]) => section(title, scrollTable(title, heads(), rows, "calc-others"))));
  }
}

const section = (title, ...children) => element("section", { class: "dsnb-card" }, element("h2", {}, title), ...children);

const unpacked = async (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};

const start = async () => {
  const shown = JSON.parse(document.getElementById("calc-words").textContent);
  const answers = await unpacked(document.getElementById("calc-answers").textContent);
  document.querySelector(".calc").calculator = new Calculator(document.querySelector(".calc"), { ...shown, columns: answers.columns });
};
start();
