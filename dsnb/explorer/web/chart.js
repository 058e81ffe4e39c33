// One Vega chart: built once, then given data and signals; colours follow the theme and the chart its width.

const refuse = () => Promise.reject(new Error("charts load nothing"));
const LOADER = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

class Chart {
  // `events` may have tooltip(id) -> lines of text, click(id), brush(region or null).
  constructor(parent, specification, label, events = {}, height = specification.height) {
    this.specification = { ...specification, height };
    this.events = events;
    this.types = null;
    this.placed = null; // the brush that is drawn
    this.hand = null; // while a pointer is down on the chart: whether it hit a mark
    this.built = null;
    this.canvas = element("div", { class: "dsnb-chart", role: "img", "aria-label": label });
    this.empty = element("p", { class: "dsnb-empty", hidden: true });
    this.tip = element("div", { class: "dsnb-tip", hidden: true });
    parent.append(this.canvas, this.empty, this.tip);
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.canvas);
    if (events.brush) this.canvas.addEventListener("pointerdown", () => this.down());
  }

  end() {
    this.sized.disconnect();
    this.view?.finalize();
  }

  // Vega reads a specification in its own time; what is to be drawn meanwhile waits, the last of it.
  async build() {
    const types = this.types;
    const specification = structuredClone(this.specification);
    for (const scale of specification.scales) scale.type = types[scale.name] ?? "linear";
    const options = { mode: "vega", actions: false, defaultStyle: false, renderer: "canvas", loader: LOADER, tooltip: this.hover.bind(this) };
    const { view } = await vegaEmbed(this.canvas, specification, options);
    if (types !== this.types) return view.finalize(); // changed again meanwhile
    this.view = view;
    this.placed = null;
    const { click, brush } = this.events;
    if (click) {
      view.addEventListener("click", (event, item) => {
        if (item?.datum?.id === undefined) return;
        if (this.hand) this.hand.hit = true;
        click(item.datum.id);
      });
    }
    if (brush) view.addSignalListener("brush", () => this.hand && this.region() && brush(this.region()));
    this.apply();
    requestAnimationFrame(() => this.resize());
  }

  // The region that Vega's brush encloses, null for none.
  region() {
    const { x, y } = this.view.signal("brush");
    const sorted = (edges) => [...edges].sort((a, b) => a - b);
    return x && y ? { x: sorted(x), y: sorted(y) } : null;
  }

  // Vega moves its brush itself, too, when a scale or the size changes: only a hand's moves count. A hand that only
  // clicked clears the region, unless it clicked a mark.
  down() {
    this.hand = { hit: false };
    const end = new AbortController();
    const up = () => {
      end.abort();
      setTimeout(() => this.up(), 40); // Vega's own answer to the pointer comes first
    };
    for (const event of ["pointerup", "pointercancel"]) addEventListener(event, up, { signal: end.signal });
  }

  up() {
    const { hit } = this.hand ?? { hit: true };
    const region = this.view && this.region();
    this.hand = null;
    if (region) this.events.brush(region);
    else if (!hit) this.events.brush(null);
    if (this.view) this.place(this.picture.brush);
  }

  // Draw this: signals, data by name, the kind of each scale, the brush; `message` stands in its place where there is
  // nothing to draw.
  draw(picture) {
    const { types = {}, message = null } = picture;
    this.empty.textContent = message ?? "";
    this.empty.hidden = !message;
    this.canvas.hidden = Boolean(message);
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
    for (const [name, value] of Object.entries({ ...this.theme(), ...signals })) this.view.signal(name, value);
    for (const [name, values] of Object.entries(data)) this.view.data(name, values);
    this.view.width(this.width()).run();
    if ((brush || this.placed) && !this.hand) this.place(brush);
  }

  // Show the brush where the state has it, if that is in sight; in pixels, since that is what Vega's own is made of.
  place(brush) {
    const edges = ["x", "y"].map((side) => {
      const scale = this.view.scale(side);
      const [least, most] = [...scale.range()].sort((a, b) => a - b);
      return brush ? brush[side].map((edge) => Math.min(Math.max(scale(edge), least), most)).sort((a, b) => a - b) : [0, 0];
    });
    this.placed = brush;
    const seen = edges.every(([low, high]) => high > low);
    ["x", "y"].forEach((side, index) => this.view.signal(`brush_${side}_1`, seen ? edges[index] : [0, 0]));
    this.view.run();
  }

  width() {
    return Math.max(160, this.canvas.clientWidth);
  }

  resize() {
    if (this.view && this.canvas.clientWidth) this.view.width(this.width()).run();
  }

  theme() {
    const style = getComputedStyle(this.canvas);
    return Object.fromEntries(["ink", "soft", "line"].map((name) => [name, style.getPropertyValue(`--dsnb-${name}`).trim()]));
  }

  recolour() {
    if (!this.view) return;
    for (const [name, value] of Object.entries(this.theme())) this.view.signal(name, value);
    this.view.run();
  }

  hover(handler, event, item, id) {
    const known = id !== null && id !== undefined && id !== "" && this.events.tooltip;
    this.tip.hidden = !known;
    if (!known) return;
    this.tip.replaceChildren(...this.events.tooltip(id).map((line) => element("div", {}, line)));
    const box = this.canvas.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, Math.max(0, box.width - this.tip.offsetWidth - 4));
    this.tip.style.left = `${left + this.canvas.offsetLeft}px`;
    this.tip.style.top = `${event.clientY - box.top + 14 + this.canvas.offsetTop}px`;
  }
}

// The ends of an axis that shows these values: a little wider than they reach; in powers where it is logarithmic.
const domain = (values, log) => {
  const known = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b));
  const high = known.reduce((a, b) => Math.max(a, b));
  if (log) return [low / 1.15, high * 1.15];
  const pad = high > low ? (high - low) * 0.07 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
};
