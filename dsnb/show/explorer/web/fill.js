// Templates of sentences (dsnb/results/answers/sentences.toml), and the units of numbers in words.

const PART = /\[([^[\]]*)\]/;
const PLACE = /\{(\w+)(?::([^|}]*)\|([^}]*))?\}/g;

// Fill a template with facts, as `fill` in dsnb/results/runs/templates.py does.
const fill = (template, facts) => {
  const isKnown = ([, name]) => (facts[name] ?? "") !== "";
  const isFull = (text) => [...text.matchAll(PLACE)].every(isKnown);
  let text = template;
  while (PART.test(text)) text = text.replace(PART, (_, part) => (isFull(part) ? part : ""));
  const noun = (name, one, more) => (String(facts[name]) === "1" ? one : more);
  const fact = (_, name, one, more) => (one === undefined ? facts[name] : noun(name, one, more));
  return isFull(text) ? text.replace(PLACE, fact) : "";
};

// Tokens in the largest unit of which there is at least one.
const amount = ({ words }, tokens) => {
  const [size, word] = words.sizes.find(([least]) => tokens >= least) ?? [1, ""];
  return `${significant(tokens / size, 6)} ${word}`.trim();
};
