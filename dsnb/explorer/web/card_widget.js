// The card as a widget of its own, above the controls. It shares the data and the state of the views' widget.

const render = async ({ model, el }) => {
  const views = await model.widget_manager.get_model(model.get("views").replace("IPY_MODEL_", ""));
  const root = element("div", { class: "dsnb-explorer", "data-lm-suppress-shortcuts": true }); // JupyterLab's own
  el.append(root);
  let [payload, card] = [null, null];
  const update = () => {
    if (views.get("payload") !== payload) {
      payload = views.get("payload");
      const shown = new Model(payload);
      const set = (patch) => {
        views.set("state", shown.changed(views.get("state"), patch));
        views.save_changes();
      };
      card = new Card(shown, set);
      root.replaceChildren(card.node);
    }
    card.show(views.get("state"));
  };
  views.on("change:payload change:state", update);
  update();
  return () => views.off("change:payload change:state", update);
};

export default { render };
