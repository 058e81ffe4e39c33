// One Vega chart: built once, then updated with data and signals. It follows the theme and the width of its container.

const reject = () => Promise.reject(new Error("charts must not load anything"));
const LOADER = { load: reject, sanitize: reject, http: reject, file: reject };

// A finger comes down without a move before it, by which Vega knows the mark under a pointer: make one.
const hoverFirst = (event) => {
  if (event.pointerType === "touch") event.target.dispatchEvent(new PointerEvent("pointermove", event));
};

class Chart {
  // `events` may contain tooltip(mark) -> lines of text, click(mark), brush(region or null). A mark is a datum: its `id`
  // is a run, or an experiment if it is marked so by `isExperiment`.
  // `about()` returns what a saved picture says besides: {title, legend, cite}.
  constructor(parent, specification, label, events = {}, height = specification.height) {
    this.label = label;
    this.about = () => ({ title: label, legend: [], cite: "" });
    this.specification = { ...specification, height };
    this.events = events;
    this.types = null;
    this.drawnBrush = null;
    this.pointer = null; // while a pointer is down on the chart: { hit: whether it hit a mark, before: the brush until then }
    this.built = null;
    this.canvas = element("div", { class: "dsnb-chart", role: "img", "aria-label": label });
    this.empty = element("p", { class: "dsnb-empty", hidden: true });
    this.tip = element("div", { class: "dsnb-tip", hidden: true });
    this.menu = element("div");
    parent.append(this.canvas, this.empty, this.tip, this.menu);
    this.resizeObserver = new ResizeObserver(([{ contentRect }]) => this.resize(contentRect.width));
    this.resizeObserver.observe(this.canvas);
    this.canvas.addEventListener("pointerdown", hoverFirst, { capture: true });
    if (events.brush) this.canvas.addEventListener("pointerdown", () => this.pointerDown());
    parent.classList.toggle("dsnb-brushed", Boolean(events.brush)); // a finger scrolls up and down, and draws sideways
  }

  destroy() {
    this.resizeObserver.disconnect();
    this.view?.finalize();
  }

  // Vega parses a specification asynchronously; the latest picture is drawn once it is done.
  async build() {
    const types = this.types;
    const specification = structuredClone(this.specification);
    for (const scale of specification.scales) scale.type = types[scale.name] ?? "linear";
    const options = { mode: "vega", actions: false, defaultStyle: false, renderer: "canvas", loader: LOADER, tooltip: this.hover.bind(this) };
    const { view } = await vegaEmbed(this.canvas, specification, options);
    if (types !== this.types) return view.finalize(); // superseded by a later build
    this.view = view;
    this.theme = this.readTheme();
    this.laidOutWidth = null;
    this.drawnBrush = null;
    const { click, brush } = this.events;
    if (click) {
      view.addEventListener("click", (event, item) => {
        if (item?.datum?.id === undefined) return;
        if (this.pointer) this.pointer.hit = true;
        click(item.datum);
      });
    }
    if (brush) view.addSignalListener("brush", () => this.pointer && this.region() && brush(this.region()));
    this.apply();
    requestAnimationFrame(() => this.resize(this.canvas.clientWidth));
  }

  // The region that Vega's brush encloses, or null.
  region() {
    const { x, y } = this.view.signal("brush");
    const sorted = (edges) => [...edges].sort((a, b) => a - b);
    return x && y ? { x: sorted(x), y: sorted(y) } : null;
  }

  // Vega also moves its brush when a scale or the size changes, so only moves while a pointer is down count. A click
  // clears the region, unless it hits a mark. A finger that turns out to scroll the page cancels what it began.
  pointerDown() {
    this.pointer = { hit: false, before: this.picture.brush ?? null };
    const listeners = new AbortController();
    const released = ({ type }) => {
      listeners.abort();
      if (type === "pointercancel") dispatchEvent(new PointerEvent("pointerup")); // Vega knows no other end of a drag
      setTimeout(() => this.pointerUp(type === "pointercancel"), 40); // after Vega has handled the event itself
    };
    for (const event of ["pointerup", "pointercancel"]) addEventListener(event, released, { signal: listeners.signal });
  }

  pointerUp(cancelled) {
    if (!this.pointer) return; // another finger has ended it
    const { hit, before } = this.pointer;
    const region = this.view && this.region();
    this.pointer = null;
    if (cancelled) this.events.brush(before);
    else if (region) this.events.brush(region);
    else if (!hit) this.events.brush(null);
    if (this.view) this.drawBrush(this.picture.brush);
  }

  // Draw a picture: signals, data by name, the type of each scale, the brush. If there is nothing to draw, show
  // `message` instead.
  draw(picture) {
    const { types = {}, message = null } = picture;
    this.empty.textContent = message ?? "";
    this.empty.hidden = !message;
    this.canvas.hidden = this.menu.hidden = Boolean(message);
    if (message) return;
    this.picture = picture;
    if (!this.types || types.x !== this.types.x || types.y !== this.types.y) {
      this.types = types;
      this.view?.finalize();
      this.view = null;
      this.built = this.build();
    } else if (this.view) this.apply();
  }

  apply() {
    const { signals, data, brush } = this.picture;
    for (const [name, value] of Object.entries({ ...this.theme, ...signals })) this.view.signal(name, value);
    for (const [name, values] of Object.entries(data)) this.view.data(name, values);
    this.layOut();
    if ((brush || this.drawnBrush) && !this.pointer) this.drawBrush(brush);
  }

  // Draw the brush of the state, as far as it is inside the axes; in pixels, as Vega's own brush signals are.
  drawBrush(brush) {
    const edges = ["x", "y"].map((side) => {
      const scale = this.view.scale(side);
      const [lowest, highest] = [...scale.range()].sort((a, b) => a - b);
      return brush ? brush[side].map((edge) => Math.min(Math.max(scale(edge), lowest), highest)).sort((a, b) => a - b) : [0, 0];
    });
    this.drawnBrush = brush;
    const visible = edges.every(([low, high]) => high > low);
    ["x", "y"].forEach((side, index) => this.view.signal(`brush_${side}_1`, visible ? edges[index] : [0, 0]));
    this.view.run();
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

  // Fade the lines of other runs.
  highlight(id) {
    if (!this.events.highlight || this.view.signal("hovered") === id) return;
    this.view.signal("hovered", id).run();
  }

  hover(handler, event, item, id) {
    const known = id !== null && id !== undefined && id !== "" && this.events.tooltip;
    this.tip.hidden = !known;
    this.highlight(known ? item.datum.id : null);
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
