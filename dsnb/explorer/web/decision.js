// What to train a task with, and what it costs: the rules of dsnb/analysis/decision.py in the words of
// dsnb/render/decision_words.py; a test compares both.

const HOURS = [[24, "day"], [1, "hour"], [1 / 60, "minute"]];
const SIZES = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1, ""]];
const OBJECTIVES = { time: "days", gpu_hours: "gpuHours", cost: "cost", memory: "memory" };

const counted = (number, noun) => `${fixed(number, 0)} ${noun}${number === 1 ? "" : "s"}`;

// Hours in the largest unit that is at least one.
const duration = (hours) => {
  const [size, noun] = HOURS.find(([least]) => hours >= least) ?? HOURS.at(-1);
  const text = significant(hours / size);
  return `${text} ${noun}${text === "1" ? "" : "s"}`;
};

const amount = (tokens) => {
  const [size, word] = SIZES.find(([least]) => tokens >= least) ?? SIZES.at(-1);
  return `${significant(tokens / size, 6)} ${word}`.trim();
};

// An end of an interval, with the digits of `changeText`.
const endText = (end) => {
  const text = fixed(Math.abs(end), Math.abs(end) < 99.95 ? 1 : 0);
  return end < 0 && text !== "0.0" ? `−${text}` : text;
};

class Decision {
  // `state` holds the question: train_tokens, objective, gpus_at_hand, prices, currency, relevance.
  constructor(model, task, state) {
    Object.assign(this, { model, task, state, rules: model.decision });
    this.runs = model.runsOf(task).filter((run) => this.rules.settings[model.experiments.codes[run]]);
    this.ok = this.runs.filter((run) => model.ok[run]);
    this.memoryFigure = this.rules.memoryFigures.find((name) => this.ok.some((run) => this.value(name, run) >= 0));
    const all = [...model.grouped(this.runs)].map(([experiment, runs]) => this.option(experiment, runs));
    this.measured = all.filter((one) => one.rate > 0 && one.gpus > 0);
    const eligible = this.measured.filter(({ gpus }) => !state.gpus_at_hand || gpus <= state.gpus_at_hand);
    const least = OBJECTIVES[state.objective];
    const known = eligible.filter((one) => !Number.isNaN(one[least]));
    known.sort((a, b) => a.days - b.days);
    known.sort((a, b) => a[least] - b[least]);
    const stable = known.filter(({ experiment }) => !model.unstable.has(experiment));
    const inTime = stable.filter(({ days }) => days <= this.rules.mostDays);
    this.options = state.objective === "time" || !inTime.length ? stable : inTime;
    this.unstable = known.length - stable.length;
    this.tooSlow = stable.length - this.options.length;
    this.isBeyond = stable.length > 0 && !inTime.length;
    this.gpus = [...new Set(eligible.map(({ gpus }) => gpus))].sort((a, b) => a - b);
    [this.best, this.second] = this.options;
  }

  value(name, run) {
    return this.model.columns.get(name)?.[run] ?? NaN;
  }

  // The price of an hour of a kind of hardware; null if it is unknown.
  price(kind) {
    const { prices } = this.state;
    return prices[kind] ?? prices[""] ?? (kind === "CPU" ? null : this.rules.assumedPrice);
  }

  // The settings of the task, whether they were measured or not.
  settings() {
    return [...new Set(this.runs.map((run) => this.rules.settings[this.model.experiments.codes[run]]))];
  }

  // What a training takes with one setting.
  option(experiment, runs) {
    const ok = runs.filter((run) => this.model.ok[run]);
    const timed = ok.filter((run) => !Number.isNaN(this.value("tokens_per_s", run)));
    const middle = (name, among) => (name ? this.model.spread(among.map((run) => this.value(name, run)), among.map((_, index) => index)).median : NaN);
    const own = this.rules.settings[experiment];
    const rate = middle("tokens_per_s", timed);
    const hours = (this.state.train_tokens / rate / 3600) * own.gpus;
    const price = this.price(own.kind) ?? NaN;
    return {
      ...own, experiment, ok, rate, price, n: ok.length, failed: runs.length - ok.length,
      days: this.state.train_tokens / rate / 86400, gpuHours: hours, energy: (hours * middle("power_w", timed)) / 1000,
      cost: hours * price, memory: middle(this.memoryFigure, ok),
    };
  }

  // The sentences of the card as plain text, and the rows of its table.
  words() {
    if (!this.best) return { kicker: "", headline: this.whyNot(), costs: this.ok.length ? "" : this.task.failed, note: "", following: "", basis: "", table: [] };
    const { best, state, options, rules } = this;
    const isOfOneBasis = options.every(({ basis }) => basis === best.basis);
    const number = counted(options.length, isOfOneBasis ? `${best.basis} setting` : "setting");
    const objective = rules.best[state.objective].replace("{unit}", best.unit);
    const train = ["Train", best.model, best.setting && `with ${best.setting},`, `on ${best.place}.`];
    const kicker = options.length > 1 ? `${objective} of ${number}` : "";
    const rate = `${significant(best.rate)} tokens/s`;
    const said = {
      kicker,
      headline: train.filter(Boolean).join(" "),
      costs: `${rate}; ${amount(state.train_tokens)} tokens: ${this.costs()}.`,
      note: this.note(),
      following: this.following(),
      basis: this.origin(),
      table: this.table(),
    };
    if (!this.isBeyond) return said;
    const basis = best.basis[0].toUpperCase() + best.basis.slice(1);
    const found = `${kicker || basis}: ${best.setting ? `${best.setting}, ` : ""}on ${best.place}, ${rate}.`;
    return { ...said, kicker: "", headline: this.beyondReason(), costs: `${found} ${this.beyond()}` };
  }

  leastIn(name) {
    return this.options.reduce((one, other) => (other[name] < one[name] ? other : one));
  }

  // That no measured setting is fast enough.
  beyondReason() {
    const { model, place } = this.leastIn("days");
    return `No measured setting trains ${model ? `${model} ` : ""}on ${amount(this.state.train_tokens)} tokens within ${this.rules.mostDays} days on ${place}.`;
  }

  // How many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours.
  beyond() {
    const { best, rules } = this;
    const thrifty = this.leastIn("gpuHours");
    const { gpuHours, setting, rate, gpus } = thrifty;
    const needed = fixed(Math.ceil(Number((gpuHours / (24 * rules.goalDays)).toFixed(6))), 0);
    const by = thrifty !== best && setting ? ` with ${setting}` : "";
    const cost = this.cost(thrifty);
    return `${rules.goalDays} days would need ${needed} ${best.unit}s if each sustained ${significant(rate / gpus)} tokens/s${by}, an ` +
      `extrapolation beyond what was measured. At that rate, the training takes ${significant(gpuHours)} ${best.unit}-hours${cost ? `, ${cost}` : ""}.`;
  }

  // How many settings are not ranked because their repeats do not agree.
  leftOutUnstable() {
    const one = this.unstable === 1;
    return `${counted(this.unstable, "setting")} ${one ? "is" : "are"} not ranked, because ${one ? "its" : "their"} repeats differ by more than ${this.rules.unstableTimes} times.`;
  }

  // That fewer GPUs were measured than are at hand, and how many settings are too slow or unstable to answer.
  note() {
    const { best, gpus, tooSlow, rules } = this;
    const { unit } = best;
    const atHand = this.state.gpus_at_hand;
    const said = [];
    if (atHand > gpus.at(-1)) {
      const [last, ...others] = gpus.map((number) => fixed(number, 0)).reverse();
      const which = others.length ? `${others.reverse().join(", ")} and ${last}` : last;
      const measured = gpus.length === 1 && gpus[0] === 1 ? `${unit} was` : `${unit}s were`;
      const sweep = `dsnb sweep PARAMS --set gpus=${atHand}`;
      const more = unit === "GPU" ? `Measure on more (${sweep}) or predict it (dsnb predict PARAMS --gpus ${atHand}).` : `Measure on more: ${sweep}.`;
      said.push(`Only ${which} ${measured} measured, fewer than the ${fixed(atHand, 0)} at hand: this answer is for ${counted(best.gpus, unit)}. ${more}`);
    }
    if (tooSlow) said.push(`${fixed(tooSlow, 0)} ${tooSlow === 1 ? "setting is left out: it takes" : "settings are left out: they take"} more than ${rules.mostDays} days.`);
    if (this.unstable) said.push(this.leftOutUnstable());
    return said.join(" ");
  }

  costs() {
    const { best } = this;
    const found = [duration(24 * best.days), `${significant(best.gpuHours)} ${best.unit}-hours`];
    if (!Number.isNaN(best.energy)) found.push(`${significant(best.energy)} kWh`);
    found.push(this.cost(best) || "cost unknown without a price");
    if (Number.isNaN(best.memory)) return found.join(", ");
    const name = this.memoryFigure === "host_memory_gib" ? "host memory" : "GPU memory";
    const has = best.capacity === null ? "" : ` of ${significant(best.capacity)}`;
    return `${found.join(", ")}; ${name} ${significant(best.memory)}${has} GiB`;
  }

  // What an option costs and at which price; empty without a price.
  cost({ kind, price, cost }) {
    if (!(price > 0)) return "";
    const { prices, currency } = this.state;
    const assumed = kind in prices || "" in prices ? "" : "an assumed ";
    return `${currency}${significant(cost)} at ${assumed}${currency}${fixed(price, 2)} a ${this.best.unit}-hour`;
  }

  whyNot() {
    const { runs, ok, measured, state } = this;
    if (!runs.length) return "No setting can be recommended: none was run yet.";
    if (!ok.length) return `No setting can be recommended: ${runs.length === 1 ? "the run" : `all ${runs.length} runs`} failed.`;
    if (!measured.length) {
      const missing = ok.some((run) => this.value("tokens_per_s", run) > 0) ? "the number of GPUs is unknown" : "no run measured speed";
      return `No setting can be recommended: ${missing}.`;
    }
    const fewest = Math.min(...measured.map(({ gpus }) => gpus));
    if (state.gpus_at_hand && fewest > state.gpus_at_hand) {
      return `No setting was measured on ${counted(state.gpus_at_hand, measured[0].unit)} or fewer: the smallest ran on ${fewest}.`;
    }
    if (this.unstable) return `No setting can be recommended: ${this.leftOutUnstable()}`;
    if (state.objective === "cost") return "The cheapest setting is unknown: give a price.";
    return "The setting with the least memory is unknown: no run measured its memory.";
  }

  // Which setting comes next, how far it is from the best, and how sure that is.
  following() {
    const { best, second, rules, state } = this;
    if (!second) return "No other setting can be compared with it.";
    const said = [this.nextSetting()];
    const found = state.objective === "memory" ? null : this.compared();
    if (found && !Number.isNaN(found.change)) said.push(this.difference(found));
    const more = second.memory - best.memory;
    if (Math.abs(more) >= rules.shownGib) said.push(`${significant(Math.abs(more))} GiB ${more > 0 ? "more" : "less"}`);
    return `Runner-up: ${said.join(", ")}.`;
  }

  // The choices in which the first two options differ: [{ name, title, from, to, phrase }].
  differing() {
    const { model, best, second } = this;
    const found = model.experimentAxes.flatMap((name, index) => {
      const [from, to] = [best, second].map(({ experiment }) => model.settings[experiment][index]);
      const axis = model.axis.get(name);
      const texts = [axis.labels[from], axis.labels[to]];
      const title = name === "gpus" ? `${best.unit}s` : axis.title;
      const phrase = this.hasEffect(axis) ? axis.phrases[to] : "";
      return texts[0] === texts[1] ? [] : [{ name, title, from: texts[0], to: texts[1], phrase }];
    });
    return found.filter(({ name }) => name !== "nodes" || !found.some((one) => one.name === "gpus"));
  }

  // Whether a setting of the second option does something: some have an effect only while another one is on.
  hasEffect({ onlyWith }) {
    const { model, second } = this;
    const index = model.experimentAxes.indexOf(onlyWith);
    return index < 0 || (model.axis.get(onlyWith).isOn[model.settings[second.experiment][index]] ?? true);
  }

  nextSetting() {
    const differing = this.differing();
    const isPlace = ({ name }) => this.rules.place.includes(name);
    const changed = differing.filter((one) => !isPlace(one)).map(({ phrase }) => phrase).filter(Boolean);
    const place = differing.some(isPlace) ? [`on ${this.second.place}`] : [];
    if (changed.length) return [...changed, ...place].join(", ");
    return place.length ? `the same ${place[0]}` : `the same settings as ${this.model.experiments.names[this.second.experiment]}`;
  }

  table() {
    if (!this.second) return [];
    const differing = this.differing();
    const isPlace = ({ name }) => this.rules.place.includes(name);
    const number = differing.filter((one) => !isPlace(one)).length + Number(differing.some(isPlace));
    return number < 2 ? [] : differing.map(({ title, from, to }) => [title, from, to]);
  }

  // How much worse the mean of the second setting is, with the interval of that; of too few runs, their median.
  difference(found) {
    const { rules, state, best } = this;
    const { verdicts, fewestRuns } = this.model.method;
    const worsening = (change) => (state.objective === "time" ? -100 * change : 100 * (1 / (1 + change) - 1));
    const worse = worsening(found.change);
    const isBetter = Number(worse <= -rules.equalPct);
    const by = Math.abs(worse) < rules.equalPct ? "no" : `${significant(Math.abs(worse), 2)} %`;
    const size = `${by} ${rules.worse[state.objective][isBetter].replace("{unit}", best.unit)}${found.verdict === verdicts.tooFew ? "" : rules.byMean[isBetter]}`;
    if (found.verdict === verdicts.tooFew) {
      const runs = found.n === 1 && found.baseN === 1 ? "one run each" : `${found.baseN} and ${found.n} runs`;
      const few = `${runs}, too few to be sure: ${fewestRuns} of each are needed`;
      return Math.abs(worse) < 100 * state.relevance ? `about the same (${size}; ${few})` : `${size} (${few})`;
    }
    const flip = worse < 0 ? -1 : 1;
    const ends = [found.low, found.high].map((end) => flip * worsening(end)).sort((a, b) => a - b);
    const interval = `95 % interval ${ends.map(endText).join(" to ")}`;
    if (found.verdict === verdicts.noLarger) return `about the same (${size}, ${interval})`;
    return `${size}${found.verdict === verdicts.likely ? "" : ", which may be chance"} (${interval})`;
  }

  // The second setting compared with the best in what is to be least; the interval is that of all pairs of the task.
  compared() {
    const { differences, columns } = this.model;
    const rates = columns.get("tokens_per_s");
    const pair = [this.best, this.second].map(({ ok, gpus, price }) => {
      const setting = differences.setting("tokens_per_s", rates, ok);
      const per = Math.log({ time: 1, gpu_hours: gpus, cost: gpus * price }[this.state.objective]);
      return { ...setting, values: setting.values.map((log) => log - per).filter(Number.isFinite), median: setting.median / Math.exp(per) };
    });
    return differences.pair(...pair, "tokens_per_s", differences.repeated("tokens_per_s", rates, this.runs), this.state.relevance);
  }

  // What is measured and what is extrapolated.
  origin() {
    const { best, rules } = this;
    const runs = best.n === 1 ? "one run" : `the median of ${best.n} runs`;
    const what = Number.isNaN(best.memory) ? "Speed" : "Speed and memory";
    const failed = best.failed ? ` ${counted(best.failed, "more run")} of this setting failed.` : "";
    return `${what}: ${best.origin}, ${runs}. Time and costs: ${rules.extrapolated}.${failed}`;
  }
}
