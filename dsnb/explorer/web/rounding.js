// Numbers as text, rounded once: the same as in dsnb/render/rounding.py.

// A number with a fixed number of decimal places and thousands separators.
const fixed = (value, places) => {
  const [whole, ...part] = value.toFixed(places).split(".");
  return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...part].join(".");
};

// A share in per cent, as in "2 %".
const percent = (share) => `${significant(100 * share)} %`;

// A number with as many significant digits, or all before the point.
const significant = (value, digits = 3) => {
  const exponent = value ? Number(value.toExponential().split("e")[1]) : 0;
  const text = fixed(value, value ? Math.max(digits - 1 - exponent, 0) : 0);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};

// A range with as many digits as it supports; the same as `span` of dsnb/runs/labels.py.
const span = (low, high) => {
  if (!(low > 0 && low < high && high < Infinity)) return significant(high);
  const place = Math.floor(Math.log10(Math.min((high - low) / 2, low)));
  const ends = [Math.floor(low / 10 ** place), Math.ceil(high / 10 ** place)];
  return ends.map((end) => fixed(end * 10 ** place, Math.max(-place, 0))).join(" to ");
};
