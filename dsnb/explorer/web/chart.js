// One Vega chart: built once, then updated with data and signals. It follows the theme and the width of its container.

const ARROWS = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowDown: ["y", -1], ArrowUp: ["y", 1] };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// A region that a hand draws in a chart: { x: [low, high], y: [low, high] } in the units of the axes. A finger draws one sideways; up or
// down it scrolls the page, and what it began is undone. Keys make and move it as well.
class Brush {
  // `changed(region)` is called while it is drawn.
  constructor(chart, changed) {
    Object.assign(this, { chart, changed, isDragged: false, isDown: false });
    this.node = element("div", { class: "dsnb-region", hidden: true });
    chart.node.append(this.node);
    chart.node.classList.add("dsnb-brushed"); // a finger scrolls up and down, and draws sideways
    chart.canvas.addEventListener("pointerdown", (event) => chart.view && this.down(event));
    chart.canvas.addEventListener("keydown", (event) => chart.view && this.pressed(event));
    for (const [name, value] of Object.entries({ role: "application", tabindex: "0" })) chart.canvas.setAttribute(name, value);
  }

  // An arrow key moves the region by a twentieth of the plot or by one setting, with Shift its upper or right edge alone; the first one makes a
  // region, Escape clears it.
  pressed(event) {
    const { view, picture } = this.chart;
    const [side, direction] = ARROWS[event.key] ?? [];
    if (event.key === "Escape") this.changed(null);
    if (!side) return;
    event.preventDefault();
    const step = side === "x" && picture.signals.x_labels ? 1 / (picture.signals.x_high - picture.signals.x_low) : 0.05;
    const ends = (name) => {
      const scale = view.scale(name);
      const [first, last] = scale.range();
      const shares = (picture.brush?.[name] ?? []).map((value) => clamp((scale(value) - first) / (last - first), 0, 1));
      let [low, high] = shares[0] < shares[1] ? shares : [0.25, 0.75];
      if (picture.brush && name === side) {
        const by = clamp(direction * step, event.shiftKey ? low + step - high : -low, 1 - high);
        [low, high] = [event.shiftKey ? low : low + by, high + by];
      }
      return [low, high].map((share) => scale.invert(first + share * (last - first)));
    };
    this.changed({ x: ends("x"), y: ends("y") });
  }

  // Where a pointer is in pixels of the plot, and whether that is inside.
  place({ clientX, clientY }) {
    const box = this.chart.canvas.getBoundingClientRect();
    const [left, top] = this.chart.origin();
    return this.inPlot(clientX - box.left - left, clientY - box.top - top);
  }

  inPlot(x, y) {
    const { view } = this.chart;
    const place = { x: clamp(x, 0, view.signal("width")), y: clamp(y, 0, view.signal("height")) };
    return { ...place, isInside: place.x === x && place.y === y };
  }

  down(event) {
    const { chart } = this;
    const from = this.place(event);
    const before = chart.picture.brush ?? null;
    const listeners = new AbortController();
    [this.isDragged, this.isDown] = [false, true];
    const moved = (at) => {
      const to = this.place(at);
      this.isDragged ||= Math.hypot(to.x - from.x, to.y - from.y) > 3;
      if (!this.isDragged || !from.isInside) return;
      const edges = (side) => [from, to].map((end) => chart.view.scale(side).invert(end[side])).sort((a, b) => a - b);
      const region = { x: edges("x"), y: edges("y") };
      this.show(region);
      this.changed(region);
    };
    const ended = ({ type }) => {
      listeners.abort();
      this.isDown = false;
      if (type === "pointercancel" && from.isInside) this.changed(before);
    };
    for (const [type, handle] of Object.entries({ pointermove: moved, pointerup: ended, pointercancel: ended })) {
      addEventListener(type, handle, { signal: listeners.signal });
    }
  }

  // Show a region as far as it is inside the axes.
  show(region) {
    const scaled = (side, index) => this.chart.view.scale(side)(region[side][index]);
    const [low, high] = region ? [0, 1].map((index) => this.inPlot(scaled("x", index), scaled("y", index))) : [];
    this.node.hidden = !region || low.x >= high.x || high.y >= low.y;
    if (this.node.hidden) return;
    const { offsetLeft, offsetTop } = this.chart.canvas;
    const [left, top] = this.chart.origin();
    const box = { left: offsetLeft + left + low.x, top: offsetTop + top + high.y, width: high.x - low.x, height: low.y - high.y };
    for (const [name, value] of Object.entries(box)) this.node.style[name] = `${value}px`;
  }
}

class Chart {
  // `events` may contain tooltip(mark) -> lines of text, click(mark), brush(region or null). A mark is a datum: its `id`
  // is that of a run, or with `isExperiment` of an experiment, or with `isPredicted` of a predicted setting.
  constructor(specification, label, events = {}) {
    Object.assign(this, { specification, label, events, types: null, view: null });
    this.canvas = element("div", { class: "dsnb-chart", role: "img", "aria-label": label });
    this.empty = element("p", { class: "dsnb-empty", hidden: true });
    this.tip = element("div", { class: "dsnb-tip", hidden: true });
    this.menu = element("div");
    this.node = element("div", { class: "dsnb-box" }, this.canvas, this.empty, this.tip, this.menu);
    this.resizeObserver = new ResizeObserver(([{ contentRect }]) => this.resize(contentRect.width));
    this.resizeObserver.observe(this.canvas);
    // A finger comes down without a move before it, by which Vega knows the mark under a pointer: make one.
    const hoverFirst = (event) => event.pointerType === "touch" && event.target.dispatchEvent(new PointerEvent("pointermove", event));
    this.canvas.addEventListener("pointerdown", hoverFirst, { capture: true });
    this.brush = events.brush ? new Brush(this, events.brush) : null;
  }

  destroy() {
    this.resizeObserver.disconnect();
    this.view?.finalize();
  }

  // Vega cannot change the type of a scale in place.
  build() {
    this.view?.finalize();
    const scales = this.specification.scales.map((scale) => ({ ...scale, type: this.types[scale.name] }));
    this.view = new vega.View(vega.parse({ ...this.specification, scales }), { tooltip: this.hover.bind(this) });
    this.view.initialize(this.canvas).addEventListener("click", (event, item) => this.clicked(item?.datum));
    this.theme = this.readTheme();
    this.laidOutWidth = null;
  }

  // A click opens a mark, or beside all of them clears the region.
  clicked(mark) {
    if (this.brush?.isDragged) return;
    if (mark?.id === undefined) this.events.brush?.(null);
    else this.events.click?.(mark);
  }

  // Where the plot is in the canvas.
  origin() {
    const { left, top } = this.view.padding();
    const [across, down] = this.view.origin();
    return [left + across, top + down];
  }

  // Draw a picture: signals, data by name, the type of each scale, the brush. If there is nothing to draw, show
  // `message` instead.
  draw(picture) {
    const { types, message = null, signals, data } = picture;
    this.empty.textContent = message ?? "";
    this.empty.hidden = !message;
    this.canvas.hidden = this.menu.hidden = Boolean(message);
    if (message) return;
    this.picture = picture;
    const isOther = types.x !== this.types?.x || types.y !== this.types?.y;
    this.types = types;
    if (isOther) this.build();
    for (const [name, value] of Object.entries({ ...this.theme, ...signals })) this.view.signal(name, value);
    for (const [name, values] of Object.entries(data)) this.view.data(name, values);
    this.layOut();
  }

  // The width of the container, as last observed: to ask for it makes the browser lay out the whole page.
  get width() {
    this.observedWidth ||= this.canvas.clientWidth;
    return Math.max(160, this.observedWidth);
  }

  resize(width) {
    if (!width) return; // hidden
    this.observedWidth = Math.floor(width);
    if (this.view && this.laidOutWidth !== this.width) this.layOut();
  }

  // Fit the axes into the width of the container. Vega's signal `width` is that of the plot without its labels, so it is
  // only set when the container changed: each time would lay the plot out too wide first, and fit it in a second pass.
  layOut() {
    if (this.laidOutWidth === this.width) this.view.resize();
    else this.view.width(this.width);
    this.laidOutWidth = this.width;
    this.view.run();
    if (this.brush && !this.brush.isDown) this.brush.show(this.picture.brush);
  }

  readTheme() {
    const style = getComputedStyle(this.canvas);
    return Object.fromEntries(["ink", "soft", "line"].map((name) => [name, style.getPropertyValue(`--dsnb-${name}`).trim()]));
  }

  recolour() {
    if (!this.view) return;
    this.theme = this.readTheme();
    for (const [name, value] of Object.entries(this.theme)) this.view.signal(name, value);
    this.view.run();
  }

  hover(handler, event, item, id) {
    const known = id !== null && id !== undefined && id !== "" && this.events.tooltip;
    const hovered = known ? item.datum.id : null;
    if (this.events.highlight && this.view.signal("hovered") !== hovered) this.view.signal("hovered", hovered).run(); // others fade
    this.tip.hidden = !known;
    if (!known) return;
    this.tip.replaceChildren(...this.events.tooltip(item.datum).map((line) => element("div", {}, line)));
    const box = this.canvas.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, Math.max(0, box.width - this.tip.offsetWidth - 4));
    this.tip.style.left = `${left + this.canvas.offsetLeft}px`;
    this.tip.style.top = `${event.clientY - box.top + 14 + this.canvas.offsetTop}px`;
  }
}

// The domain of an axis for these values, slightly padded: by a factor if the axis is logarithmic.
const domain = (values, log) => {
  const known = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b));
  const high = known.reduce((a, b) => Math.max(a, b));
  if (log) return [low / 1.15, high * 1.15];
  const pad = high > low ? (high - low) * 0.07 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
};
