// The answer, and comparisons of two settings, with data and templates of dsnb/results/answers.

// The places in a text such as "3-5 9", as `ranges` in dsnb/show/render/decision_data.py writes them.
const placesOf = (text) => text.split(" ").filter(Boolean).flatMap((part) => {
  const [first, last = first] = part.split("-").map(Number);
  return Array.from({ length: last - first + 1 }, (_, step) => first + step);
});

// A task: its candidates by row, and the intervals of pairs of its settings.
class Task {
  constructor(model, { candidates, ...task }) {
    Object.assign(this, task, { model });
    const { take, ...columns } = candidates;
    const read = (name, value) => (model.textColumns.includes(name) ? model.texts[value] : value);
    const at = (column, place) => (Array.isArray(column) ? column[place] : column); // one that is the same for all is sent once
    const row = (_, place) => {
      const cells = Object.entries(columns).map(([name, column]) => [name, read(name, at(column, place))]);
      return { ...Object.fromEntries(cells), take: take[place] };
    };
    this.candidates = columns.experiment.map(row);
  }

  // Python's comparison of two experiments by a figure: number and mean of the runs (or hosts: `counted`) of both, and the half-width of the
  // interval of their ratio (a factor) or, for a percentage, of their difference; null if there is none.
  pair(name, base, other, state) {
    const { settings, first, second, figures } = this.pairs;
    const stored = figures[name === "days" ? "tokens_per_s" : name];
    const sides = [base, other].map((experiment) => settings.indexOf(experiment));
    this.places ??= new Map(first.map((setting, place) => [`${setting} ${second[place]}`, place]));
    const place = this.places.get(sides.join(" ")) ?? this.places.get([...sides].reverse().join(" "));
    if (!stored || place === undefined) return null;
    const { hosts, notes } = stored;
    stored.sidesOf ??= new Map(placesOf(hosts.at).map((pair, at) => [pair, [hosts.sides[hosts.first[at]], hosts.sides[hosts.second[at]]]]));
    stored.noteOf ??= new Map(Object.entries(notes).flatMap(([text, pairs]) => placesOf(pairs).map((pair) => [pair, text])));
    const [factor, ofHosts] = [stored.factor[place], stored.sidesOf.get(place)];
    if (factor === null && !ofHosts) return null; // too few runs
    const order = first[place] === sides[0] ? [0, 1] : [1, 0];
    const [base_n, n] = ofHosts ? order.map((side) => ofHosts[side][0]) : sides.map((side) => stored.n[side]);
    const means = ofHosts ? order.map((side) => ofHosts[side][1]) : sides.map((side) => stored.values[side]);
    const values = name === "days" ? means.map((rate) => (state.train_tokens || this.tokens) / rate / 86400) : means;
    return { base_n, n, counted: ofHosts ? "host" : "run", values, reach: factor ?? NaN, note: this.model.texts[stored.noteOf.get(place)] ?? "" };
  }
}

// The two sides of a comparison: what Python found of two settings, or the medians of some runs, which have no interval.
const ofRuns = (model, name, base, other, state) => {
  const [ours, theirs] = [base, other].map((runs) => model.spread(name, null, state, runs));
  return { base_n: ours.n, n: theirs.n, counted: "run", values: [ours.median, theirs.median], reach: NaN, note: "" };
};
const ofSettings = (model, name, base, other, state) => {
  const [ours, theirs] = [base, other].map((experiment) => model.whole.get(experiment));
  return model.tasks[model.taskCodes[ours[0]]].pair(name, base, other, state) ?? ofRuns(model, name, ours, theirs, state);
};

// The change and its interval, as ratios (times `per`) minus 1; of percentages also in `points`.
const comparison = (model, name, sides, per = 1) => {
  const { values: [base, other], reach } = sides;
  const [ratio, difference] = [(per * other) / base, other - base];
  if (model.figure.get(name)?.unit !== "%") return { ...sides, change: ratio - 1, low: ratio / reach - 1, high: ratio * reach - 1 };
  const points = [difference, difference - reach, difference + reach];
  const [change, low, high] = points.map((one) => one / (Math.abs(base) || NaN));
  return { ...sides, change, low, high, points };
};

// The name of the `verdict.*` template for an interval, given the smallest relevant difference.
const verdictOf = ({ low, high, change, n, base_n }, relevance, { fewestRuns }) => {
  if (Math.min(n, base_n) < fewestRuns) return "too few runs";
  if (Number.isNaN(low)) return "none"; // of many settings, not all pairs are in the page
  if (Math.max(Math.abs(low), Math.abs(high)) <= relevance) return "no larger difference";
  return (low > 0 || high < 0) && Math.abs(change) >= relevance ? "likely" : "unclear";
};

// A comparison in words: `text` for the change, `reason` for the rest.
const inWords = (model, name, sides, state) => {
  const result = comparison(model, name, sides);
  const verdict = verdictOf(result, state.relevance, model.limits);
  const unit = result.points ? "points" : "%";
  const factor = result.points ? model.factor(name) : 100;
  const { points, change: ratio, low: least, high: most } = result;
  const sizes = (points ?? [ratio, least, most]).map((one) => factor * one);
  const text = (size, plus) => `${signed(size, plus)} ${unit}`;
  const [change, low, high] = sizes.map((size) => text(size, "+"));
  const largest = text(Math.max(...sizes.slice(1).map(Math.abs)));
  const reason = model.say(`verdict.${verdict}`, { ...sides, low, high, largest });
  return { ...result, verdict, text: Number.isFinite(sizes[0]) ? change : "", reason };
};

const compared = (model, name, base, other, state) => {
  const [single] = model.whole.get(other);
  const within = model.whole.get(other).length === 1 ? model.alone[single] : undefined; // what a single run shows of its spread
  return { ...inWords(model, name, ofSettings(model, name, base, other, state), state), within };
};

const LEAST = { time: "days", gpu_hours: "hours", cost: "cost", memory: "memory" };

// Hours in the largest unit of which there is at least one.
const duration = ({ words }, hours) => {
  const [size, noun] = words.hours.find(([least]) => hours >= least) ?? words.hours.at(-1);
  const text = significant(hours / size);
  return `${text} ${noun}${text === "1" ? "" : "s"}`;
};

// The price of an hour of a kind of hardware; null if it is unknown.
const priceOf = (model, { prices }, kind) => prices[kind] ?? prices[""] ?? (kind === "CPU" ? null : model.limits.assumedPrice);

class Answer {
  // `state` holds the question: train_tokens, objective, gpus_at_hand, global_batch, prices, currency, relevance.
  constructor(model, task, state) {
    Object.assign(this, { model, task, state, tokens: state.train_tokens || task.tokens });
    this.fill = model.say.bind(model);
    this.measured = task.candidates.map((one) => this.option(one));
    const isHeld = (one) => !state.global_batch || one.global_batch === state.global_batch;
    this.eligible = this.measured.filter((one) => isHeld(one) && (!state.gpus_at_hand || one.gpus <= state.gpus_at_hand));
    const least = LEAST[state.objective];
    const ranked = this.eligible.filter((one) => one[least] !== null && !Number.isNaN(one[least]));
    ranked.sort((a, b) => a[least] - b[least] || a.days - b.days);
    const stable = ranked.filter(({ unstable }) => !unstable);
    const inTime = stable.filter(({ days }) => days <= model.limits.maxDays);
    this.options = this.repeatedFirst(state.objective === "time" || !inTime.length ? stable : inTime);
    this.unstable = ranked.length - stable.length;
    this.tooSlow = stable.length - this.options.length;
    this.isBeyond = stable.length > 0 && !inTime.length;
    [this.best, this.second] = this.options;
  }

  // Ranked options, the first with enough runs before a better one with fewer, unless the gain is clear: `_ranked` in decide.py.
  repeatedFirst(options) {
    const { objective, relevance } = this.state;
    const least = LEAST[objective];
    const { fewestRuns: fewest, clear } = this.model.limits;
    const doubted = objective === "memory" ? 1 : clear; // one run shows the memory
    this.isByRepeats = false;
    if (!options.length || options[0].n >= fewest) return options;
    const sure = options.find((one) => one.n >= fewest && one[least] <= Math.max(doubted, 1 / (1 - relevance)) * options[0][least]);
    if (!sure) return options;
    this.isByRepeats = sure[least] > options[0][least];
    return [sure, ...options.filter((one) => one !== sure)];
  }

  // A candidate with the days, hours, energy and cost of the training.
  option(one) {
    const hours = (this.tokens / one.rate / 3600) * one.gpus;
    const price = priceOf(this.model, this.state, one.kind);
    const energy = one.power === null ? NaN : (hours * one.power) / 1000;
    return { ...one, days: hours / one.gpus / 24, hours, price, energy, cost: price === null ? NaN : hours * price };
  }

  words() {
    const { best, state, options, model, task } = this;
    if (!best) return { headline: this.whyNot() };
    const known = (value) => (value === null || Number.isNaN(value) ? "" : significant(value));
    const tokens = amount(model, this.tokens);
    const facts = {
      ...best, failed: best.failed ? fixed(best.failed, 0) : "", rate: significant(best.rate),
      tokens: state.train_tokens ? tokens : `${model.words.assumed} ${tokens}`,
      duration: duration(model, 24 * best.days), hours: significant(best.hours),
      energy: known(best.energy), ...this.price(best), cost: this.cost(best) || this.fill("no_cost"),
      memory_name: task.memory, memory: known(best.memory), capacity: known(best.capacity), free: best.capacity === null ? "" : known(best.capacity - best.memory),
      memory_word: best.memory === null ? "" : "memory",
    };
    const kicker = this.kicker();
    const basis = this.fill("basis", facts);
    const lines = { ...best, note: this.note(), following: this.following(), basis };
    const settings = fixed(this.measured.length, 0);
    const counts = { settings, needed: model.limits.fewestSettings };
    const headline = task.few ? this.fill("headline.few", { ...facts, ...counts }) : this.fill("headline", facts);
    if (!this.isBeyond) return { ...lines, kicker, headline, costs: this.fill("costs", facts), tiles: this.tiles(facts) };
    return { ...lines, headline: this.fill("headline.beyond", this.least("days")), costs: this.beyond(facts) };
  }

  // Among how many settings this is the best one; if its runs put it first, among those with as many.
  kicker() {
    const { best, options, model, isByRepeats } = this;
    const compared = isByRepeats ? options.filter(({ n }) => n >= model.limits.fewestRuns) : options;
    const isOfOneBasis = options.every(({ basis }) => basis === best.basis);
    return this.fill(isByRepeats ? "kicker.confirmed" : "kicker", {
      n: best.n,
      best: fill(model.words.best[this.state.objective], best),
      options: compared.length > 1 ? fixed(compared.length, 0) : "",
      basis: isOfOneBasis ? best.basis : "",
    });
  }

  whyNot() {
    const { task, state, measured } = this;
    const { runs } = task;
    const several = runs > 1 ? runs : "";
    if (task.case) return this.fill(`headline.${task.case}`, { runs, several });
    if (!this.eligible.length) {
      const at_hand = state.gpus_at_hand ? fixed(state.gpus_at_hand, 0) : "";
      if (state.global_batch) return this.fill("headline.no_batch", { held: fixed(state.global_batch, 0), at_hand, unit: measured[0].unit });
      const fewest = measured.reduce((one, other) => (other.gpus < one.gpus ? other : one));
      return this.fill("headline.too_few_gpus", { at_hand, unit: measured[0].unit, fewest: fixed(fewest.gpus, 0) });
    }
    if (this.unstable) return this.fill("headline.unstable", { unstable: fixed(this.unstable, 0) });
    return this.fill(state.objective === "cost" ? "headline.no_price" : "headline.no_memory");
  }

  // The tiles of the card: label, figure and remark of each.
  tiles(facts) {
    const { tiles, unrecorded } = this.model.words;
    const names = [this.task.few ? "" : "setting", "time", facts.price ? "cost" : "hours", facts.memory && "memory"].filter(Boolean);
    return names.map((name) => tiles[name].map((template) => fill(template, { ...facts, setting: facts.setting || unrecorded })));
  }

  // What an option costs and at which price; empty without a price.
  cost(option) {
    return this.fill("cost", { ...this.price(option), unit: option.unit });
  }

  price({ kind, price, cost }) {
    if (!(price > 0)) return { price: "" };
    const { prices, currency } = this.state;
    const assumed = kind in prices || "" in prices ? "" : this.model.words.assumed;
    return { currency, amount: significant(cost), assumed, price: fixed(price, 2) };
  }

  least(name) {
    return this.options.reduce((one, other) => (other[name] < one[name] ? other : one));
  }

  // How many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours.
  beyond(facts) {
    const thrifty = this.least("hours");
    const needed = Math.ceil(Number((thrifty.hours / (24 * this.model.limits.goalDays)).toFixed(6)));
    const by = thrifty.setting || this.model.experiments.names[thrifty.experiment];
    return this.fill("costs.beyond", { ...facts, needed: fixed(needed, 0), rate_per_gpu: significant(thrifty.rate / thrifty.gpus), by, basis: thrifty.basis, cost: this.cost(thrifty) });
  }

  note() {
    const { best, state } = this;
    const most = Math.max(...this.eligible.map(({ gpus }) => gpus));
    const atHand = state.gpus_at_hand;
    const [measured, at_hand, gpus] = [most, atHand, best.gpus].map((gpus) => fixed(gpus, 0));
    const facts = { measured, unit: best.unit, at_hand, gpus, number: atHand };
    return joined([
      atHand > most && this.fill("note.only_measured", facts),
      this.tooSlow && this.fill("note.too_slow", { too_slow: fixed(this.tooSlow, 0) }),
      this.unstable && this.fill("note.unstable", { unstable: fixed(this.unstable, 0) }),
      this.task.few,
    ]);
  }

  // The runner-up, its distance from the best setting, and how certain that is.
  following() {
    const { best, second, model } = this;
    if (!second) return this.fill("following.none");
    const differing = this.differing();
    const more = best.memory === null || second.memory === null ? 0 : second.memory - best.memory;
    const gib = Math.abs(more) >= model.limits.shownGib ? significant(Math.abs(more)) : "";
    const facts = { changes: this.changes(differing), difference: this.difference(), gib, more: more > 0 ? "more" : "less", training: this.training(differing) };
    if (!this.isByRepeats) return this.fill("following", facts);
    return this.fill("following.perhaps", { ...facts, size: this.size(this.compared()), n: second.n, several: second.n > 1 ? second.n : "" });
  }

  // The differences of the second option that change the training and not only its speed.
  training(differing) {
    const [before, after] = [this.best, this.second].map(({ global_batch }) => global_batch && fixed(global_batch, 0));
    const batch = before && after && before !== after ? [{ title: "global batch", before, after }] : [];
    const isOther = ({ phrase, before, after }) => phrase && before !== "-" && after !== "-";
    const named = (name) => differing.filter((one) => one.name === name);
    const others = this.model.words.training.flatMap(named).filter(isOther);
    const changes = [...batch, ...others].map((one) => this.fill("training.change", one));
    return this.fill("training", { changed: changes.join(", ") });
  }

  // The choices in which another option differs from the first.
  differing(other = this.second) {
    const { model, best } = this;
    const codes = model.settings[other.experiment];
    const choices = model.experimentAxes.flatMap((name, index) => {
      const axis = model.axis.get(name);
      const [from, to] = [model.settings[best.experiment][index], codes[index]];
      const [before, after] = [axis.labels[from], axis.labels[to]];
      if (before === after) return [];
      const condition = model.experimentAxes.indexOf(axis.onlyWith); // some have an effect only while another one is on
      const hasEffect = condition < 0 || (model.axis.get(axis.onlyWith).isOn[codes[condition]] ?? true);
      const isPlace = model.words.place.includes(name);
      const phrase = hasEffect ? axis.phrases[to] : "";
      return [{ name, title: axis.title, before, after, isPlace, phrase }];
    });
    return choices.filter(({ name }) => name !== "nodes" || !choices.some((one) => one.name === "gpus"));
  }

  changes(differing, other = this.second) {
    const { model } = this;
    const phrases = differing.filter(({ isPlace, phrase }) => !isPlace && phrase).map(({ phrase }) => phrase);
    const isElsewhere = differing.some(({ isPlace }) => isPlace);
    if (phrases.length) return [...phrases, ...(isElsewhere ? [`on ${other.place}`] : [])].join(", ");
    return isElsewhere ? this.fill("changes.place", other) : this.fill("changes.same", { experiment: model.experiments.names[other.experiment] });
  }

  // Compare the second option with the first by the objective; memory is not compared.
  compared() {
    const { best, second, state, model } = this;
    if (state.objective === "memory") return { change: NaN };
    const per = { time: 1, gpu_hours: best.gpus / second.gpus, cost: (best.gpus * best.price) / (second.gpus * second.price) }[state.objective];
    return comparison(model, "tokens_per_s", ofSettings(model, "tokens_per_s", best.experiment, second.experiment, state), per);
  }

  worsening(change) {
    return this.state.objective === "time" ? -100 * change : 100 * (1 / (1 + change) - 1);
  }

  // How much worse the mean of the second setting is; with too few runs, the median.
  size(result) {
    const { best, state, model: { limits, words } } = this;
    if (Number.isNaN(result.change)) return "";
    const worse = this.worsening(result.change);
    const isBetter = Number(worse <= -limits.equalPct);
    const isByMean = !["too few runs", "none"].includes(verdictOf(result, state.relevance, limits));
    return this.fill("size", {
      by: Math.abs(worse) < limits.equalPct ? "no" : `${significant(Math.abs(worse), 2)} %`,
      worse: fill(words.worse[state.objective][isBetter], best), mean: isByMean ? words.byMean[isBetter] : "",
    });
  }

  // The same, and how certain that is.
  difference() {
    const { state, model: { limits } } = this;
    const result = this.compared();
    const size = this.size(result);
    if (!size) return "";
    const verdict = verdictOf(result, state.relevance, limits);
    const isFew = verdict === "too few runs";
    const worse = this.worsening(result.change);
    const isClear = Math.max(1 + result.change, 1 / (1 + result.change)) >= limits.clear; // by single runs as well
    if (verdict === "none" || (isFew && isClear)) return size;
    if (isFew) {
      return this.fill(`difference.${verdict}`, { ...result, size });
    }
    const flip = worse < 0 ? -1 : 1;
    const [low, high] = [result.low, result.high].map((end) => flip * this.worsening(end)).sort((a, b) => a - b).map((end) => signed(end));
    return this.fill(`difference.${verdict}`, { size, interval: this.fill("interval", { low, high }) });
  }
}
