// The explorers of a page: created from the data beside them.

// A link relative to the page; each part is encoded, so that none can start another scheme.
const relativeLink = (path) => `./${path.map(encodeURIComponent).join("/")}`;

const LEFT_OUT = "are left out of this file to keep it small; they are in the run folders.";
const NOT_LOADED = "are not loaded yet: open a run to load its steps.";

const mounted = []; // the explorers of a page, in their order

// In a page: create every explorer from the data beside it.
const mountAll = () => {
  for (const root of document.querySelectorAll(".dsnb-explorer")) {
    const data = root.parentNode.querySelector("script[type='application/json']");
    if (data && !root.dsnb) new Explorer(root, JSON.parse(data.textContent));
  }
};
