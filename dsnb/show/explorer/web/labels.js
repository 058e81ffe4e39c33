// Where the labels of a chart go: beside their points, over no other mark, the first ones first. Vega's own layout of labels draws every
// mark that they avoid into pictures, anew for each change of a control.

const FONT_PX = 12; // as `label` in charts.yaml
const LANE_PX = 18; // below the y axis, as in charts.yaml
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";

// To the left of a point (-1), at it (0) or to its right (1), and above (-1), beside (0) or below it (1): the best place first.
const BESIDE = [[1, 0], [1, -1], [1, 1], [0, 1], [0, -1], [-1, 0], [-1, 1], [-1, -1]];
const AROUND = [[-1, -1], [0, -1], [1, 1], [0, 1], [1, 0]];

const boxAt = (x, y, width, height) => ({ left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2 });
const between = (from, to) => ({ left: Math.min(from.x, to.x), right: Math.max(from.x, to.x), top: Math.min(from.y, to.y), bottom: Math.max(from.y, to.y) });
const overlaps = (one) => (other) => one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;

// The width of a text in pixels.
const textWidth = (text, weight) => {
  textWidth.pen ??= element("canvas").getContext("2d");
  textWidth.pen.font = `${weight} ${FONT_PX}px ${FONT}`;
  return textWidth.pen.measureText(text).width;
};

// From a value of an axis to pixels.
const toPixels = (type, low, high, from, to) => {
  const scaled = type === "log" ? Math.log : Number;
  return (value) => from + ((scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (to - from);
};

// The boxes that a stepped line covers.
const stepBoxes = (spots) => spots.slice(1).flatMap((to, index) => {
  const corner = { x: to.x, y: spots[index].y };
  return [between(spots[index], corner), between(corner, to)];
});

// Labels with the offset (dx, dy) of their middle from their point; those for which there is no room are left out. A label has a text, a weight,
// its possible `places`, and a `gap` between itself and its point. The boxes of the labels are added to those that are `taken`.
const placed = (labels, taken, pixels, plot) => {
  const isFree = (box) => box.left >= 0 && box.right <= plot.width && box.top >= 0 && box.bottom <= plot.height && !taken.some(overlaps(box));
  return labels.flatMap(({ x, y, text, weight, places, gap }) => {
    const width = textWidth(text, weight);
    const at = pixels({ x, y });
    const offsets = places.map(([across, down]) => {
      const away = across && down ? gap * Math.SQRT1_2 : gap;
      return { dx: across * (away + width / 2), dy: down * (away + FONT_PX / 2) };
    });
    const boxOf = ({ dx, dy }) => boxAt(at.x + dx, at.y + dy, width, FONT_PX);
    const offset = offsets.find((one) => isFree(boxOf(one)));
    if (!offset) return [];
    taken.push(boxOf(offset));
    return [{ x, y, text, weight, ...offset }];
  });
};

const NARROW_PX = 420; // a plot without room for names
const [RING_PX, STAR_PX, DOT_PX] = [15, 20, 9]; // widths of marks

// The labels of the first chart: numbers at the rings of the front, and names of settings.
const scatterLabels = ({ signals, types, data }, plot) => {
  const across = toPixels(types.x, signals.x_low, signals.x_high, 0, plot.width);
  const up = toPixels(types.y, signals.y_low, signals.y_high, plot.height - LANE_PX, 0);
  const pixels = ({ x, y }) => ({ x: across(x), y: up(y) });
  const boxes = (marks, size) => marks.map(pixels).map(({ x, y }) => boxAt(x, y, size, size));
  const limits = data.capacity_x.map(({ x, text }) => {
    const width = textWidth(text, "normal");
    return boxAt(across(x) - 5 - width / 2, 8, width, FONT_PX);
  });
  const numbers = data.front.map(({ x, y, number }) => ({ x, y, text: number, weight: "bold", places: AROUND, gap: 9 }));
  const shown = plot.width < NARROW_PX ? [] : data.names;
  const names = shown.map(({ x, y, name, weight }) => ({ x, y, text: name, weight, places: BESIDE, gap: 14 }));
  const taken = [...boxes(data.front, RING_PX), ...limits];
  const numbered = placed(numbers, taken, pixels, plot);
  taken.push(...boxes(data.best, STAR_PX), ...stepBoxes(data.front.map(pixels)), ...boxes(data.obstacles, DOT_PX));
  return [...numbered, ...placed(names, taken, pixels, plot)];
};
