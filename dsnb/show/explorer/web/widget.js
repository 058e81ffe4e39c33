// The explorer as a widget: it shares its state with the kernel, which sends the series of runs that are opened.

// JupyterLab's address of a file, or null if the server does not serve it; compressed files are downloaded.
const labLink = (home) => (path) => {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}");
  const root = (config.serverRoot ?? "").replace(/^~/, home);
  const file = `/${path.join("/")}`;
  if (!root || !file.startsWith(`${root}/`)) return null;
  const view = file.endsWith(".gz") ? "files" : "lab/tree";
  return `${config.baseUrl}${view}/${file.slice(root.length + 1).split("/").map(encodeURIComponent).join("/")}`;
};

const render = ({ model, el }) => {
  const root = element("div", { class: "dsnb-explorer", "data-lm-suppress-shortcuts": true }); // JupyterLab's own
  el.append(root);
  const changed = (state) => {
    model.set("state", state);
    model.save_changes();
  };
  let [shown, series, explorer, waiting] = [];
  const update = () => {
    cancelAnimationFrame(waiting);
    if (!el.isConnected) { // a chart takes its colours from the document
      waiting = requestAnimationFrame(update);
      return;
    }
    const [payload, state, sent] = ["payload", "state", "series"].map((name) => model.get(name));
    if (payload !== shown) { // other runs need another explorer
      explorer?.destroy();
      explorer = new Explorer(root, { ...payload, state, series: { ...payload.series, ...sent } }, { changed, link: labLink(model.get("user_home")) });
    } else {
      if (sent !== series) {
        Object.assign(explorer.model.series, sent);
        explorer.redraw();
      }
      explorer.set(state, false);
    }
    [shown, series] = [payload, sent];
  };
  update();
  model.on("change", update);
  return () => {
    model.off("change", update);
    cancelAnimationFrame(waiting);
    explorer?.destroy();
  };
};

export default { render };
