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
  const root = element("div", { class: "dsnb-explorer" });
  el.append(root);
  const payload = { ...model.get("payload"), state: model.get("state"), live: true };
  const changed = (state) => {
    model.set("state", state);
    model.save_changes();
  };
  const explorer = new Explorer(root, payload, { controls: false, changed, link: labLink(model.get("user_home")) });
  explorer.addSeries(model.get("series"));
  const state = () => explorer.set(model.get("state"), false);
  const series = () => explorer.addSeries(model.get("series"));
  model.on("change:state", state);
  model.on("change:series", series);
  return () => {
    model.off("change:state", state);
    model.off("change:series", series);
    explorer.destroy();
  };
};

export default { render };
