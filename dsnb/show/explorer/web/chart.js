// One Vega chart: built once, then updated with data and signals. It follows the theme and the width of its container.

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const FINGER_PX = 20; // half the width of a finger
const AXIS_PX = 75; // about the width of the y axis

class Chart {
  // `kind` is a part of charts.yaml. `events` may contain tooltip(mark) -> lines of text, click(mark), brush(region or null). A mark is a datum: its `id`
  // is that of a run, or with `isExperiment` of an experiment, or with `isPredicted` of a predicted setting.
  constructor(kind, label, events = {}, height = 280) {
    Object.assign(this, { specification: { ...CHARTS.frame, ...CHARTS[kind], height }, label, events, types: null, view: null });
    this.canvas = element("div", { class: "dsnb-chart", role: "img", "aria-label": label });
    this.empty = element("p", { class: "dsnb-empty", hidden: true });
    this.tip = element("div", { class: "dsnb-tip", hidden: true });
    this.menu = element("div");
    this.node = element("div", { class: "dsnb-box" }, this.canvas, this.empty, this.tip, this.menu);
    this.resizeObserver = new ResizeObserver(([{ contentRect }]) => this.resize(contentRect.width));
    this.resizeObserver.observe(this.canvas);
    this.canvas.addEventListener("pointerdown", ({ pointerType }) => (this.isTouched = pointerType === "touch"));
    this.canvas.addEventListener("mousedown", (event) => this.isTouched && this.pointAt(event), { capture: true });
    if (events.brush) this.canvas.addEventListener("pointerdown", (event) => this.startRegion(event));
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

  // Vega clicks the mark that the pointer last moved to. A tap moves none, and is inexact: move one to the nearest symbol in reach.
  pointAt(event) {
    const at = this.place(event);
    const gap = ({ x, y }) => Math.hypot(x - at.x, y - at.y);
    const marks = this.view.scenegraph().root.items[0].items.filter((mark) => mark.marktype === "symbol" && mark.interactive);
    const [{ x, y } = at] = marks.flatMap(({ items }) => items).filter((item) => gap(item) <= FINGER_PX).sort((a, b) => gap(a) - gap(b));
    event.target.dispatchEvent(new PointerEvent("pointermove", { clientX: event.clientX + x - at.x, clientY: event.clientY + y - at.y }));
  }

  clicked(mark) {
    if (this.isDragged) return;
    if (mark?.id === undefined) this.events.brush?.(null);
    else this.events.click?.(mark);
  }

  // Call `brush({ x: [low, high], y: [low, high] })`, in the units of the axes, while the mouse draws a region. A finger scrolls the page.
  startRegion(event) {
    this.isDragged = false;
    if (!this.view || event.pointerType === "touch") return;
    const from = this.place(event);
    const moved = (at) => {
      const to = this.place(at);
      this.isDragged ||= Math.hypot(to.x - from.x, to.y - from.y) > 3;
      const edges = (side) => [from, to].map((end) => this.view.scale(side).invert(end[side])).sort((a, b) => a - b);
      if (this.isDragged) this.events.brush({ x: edges("x"), y: edges("y") });
    };
    addEventListener("pointermove", moved);
    addEventListener("pointerup", () => removeEventListener("pointermove", moved), { once: true });
  }

  // The position of a pointer in pixels of the plot, clipped to the plot.
  place({ clientX, clientY }) {
    const { view } = this;
    const box = this.canvas.getBoundingClientRect();
    const { left, top } = view.padding();
    const [across, down] = view.origin();
    return { x: clamp(clientX - box.left - left - across, 0, view.signal("width")), y: clamp(clientY - box.top - top - down, 0, view.signal("height")) };
  }

  // Draw a picture: signals, data by name, the type of each scale. If there is nothing to draw, show `message` instead.
  draw(picture) {
    const { types, message = null, signals, data } = picture;
    this.empty.textContent = message ?? "";
    this.empty.hidden = !message;
    this.canvas.hidden = this.menu.hidden = Boolean(message);
    this.tip.hidden ||= this.isTouched; // a tap leaves it open
    if (message) return;
    this.picture = picture;
    const isOther = types.x !== this.types?.x || types.y !== this.types?.y;
    this.types = types;
    if (isOther) this.build();
    this.signal({ ...this.theme, ...signals });
    for (const { name } of this.specification.data) this.view.data(name, data[name] ?? []);
    this.layOut();
  }

  signal(signals) {
    for (const [name, value] of Object.entries(signals)) this.view.signal(name, value);
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
    this.placeLabels(this.plotWidth ?? this.width - AXIS_PX);
    this.view.run();
    const width = this.view.signal("width");
    if (Math.abs(width - this.labelledWidth) > 20) this.placeLabels(width).run();
    this.plotWidth = width;
  }

  // Labels stand at their points, so that they need the width of the plot only to find room.
  placeLabels(width) {
    const { picture, view } = this;
    this.labelledWidth = width;
    if (picture.labels) view.data("labels", picture.labels({ width, height: this.specification.height }));
    return view;
  }

  readTheme() {
    const { color: ink, outlineColor: soft, borderTopColor: line } = getComputedStyle(this.canvas);
    return { ink, soft, line };
  }

  recolour() {
    if (!this.view) return;
    this.theme = this.readTheme();
    this.signal(this.theme);
    this.view.run();
  }

  hover(handler, event, item, isPointedAt) {
    const isMark = isPointedAt && this.events.tooltip;
    const hovered = isMark ? item.datum.id : null;
    if (this.events.highlight && this.view.signal("hovered") !== hovered) this.view.signal("hovered", hovered).run(); // others fade
    this.tip.hidden = !isMark;
    if (!isMark) return;
    this.tip.replaceChildren(...this.events.tooltip(item.datum).map((line) => element("div", {}, line)));
    const box = this.canvas.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, Math.max(0, box.width - this.tip.offsetWidth - 4));
    this.tip.style.left = `${left + this.canvas.offsetLeft}px`;
    this.tip.style.top = `${event.clientY - box.top + 14 + this.canvas.offsetTop}px`;
  }
}

// The domain of an axis for these values, slightly padded: by a factor if the axis is logarithmic.
const domain = (values, log) => {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!usable.length) return log ? [1, 10] : [0, 1];
  const [low, high] = [Math.min, Math.max].map((end) => usable.reduce((a, b) => end(a, b)));
  if (log) return [low / 1.15, high * 1.15];
  const pad = high > low ? (high - low) * 0.07 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
};
