// The explorer as a widget: the kernel keeps the same state, and sends what it is asked for.

// JupyterLab's address of a file, if it lies below the folder that the server serves; what Lab cannot show is downloaded.
const inLab = (home) => (path) => {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}");
  const root = (config.serverRoot ?? "").replace(/^~/, home);
  const file = `/${path.join("/")}`;
  if (!root || !file.startsWith(`${root}/`)) return null; // the server does not serve it
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
  const explorer = new Explorer(root, payload, { controls: false, changed, linked: inLab(model.get("user_home")) });
  explorer.add(model.get("series"));
  const state = () => explorer.set(model.get("state"), false);
  const series = () => explorer.add(model.get("series"));
  model.on("change:state", state);
  model.on("change:series", series);
  return () => {
    model.off("change:state", state);
    model.off("change:series", series);
    explorer.end();
  };
};

export default { render };
