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
  let [shown, explorer] = [null, null];
  // Other runs need another explorer; the state and the series that come with them belong to it.
  const update = (act) => () => {
    if (model.get("payload") === shown) return act();
    explorer?.destroy();
    shown = model.get("payload");
    const payload = { ...shown, series: { ...shown.series }, state: model.get("state") };
    explorer = new Explorer(root, payload, { changed, link: labLink(model.get("user_home")) });
    return explorer.addSeries(model.get("series"));
  };
  const followed = {
    "change:payload": update(() => {}),
    "change:state": update(() => explorer.set(model.get("state"), false)),
    "change:series": update(() => explorer.addSeries(model.get("series"))),
  };
  followed["change:payload"]();
  for (const [event, handler] of Object.entries(followed)) model.on(event, handler);
  return () => {
    for (const [event, handler] of Object.entries(followed)) model.off(event, handler);
    explorer.destroy();
  };
};

export default { render };
