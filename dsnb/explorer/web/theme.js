// Follow the light or dark theme of the system and of JupyterLab; print is always light.
const watchTheme = (root, recolour, printed) => {
  const print = (printing) => {
    root.classList.toggle("dsnb-print", printing);
    recolour();
    printed(printing);
  };
  const listeners = new AbortController();
  const { signal } = listeners;
  const lab = new MutationObserver(recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour, { signal });
  lab.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  addEventListener("beforeprint", () => print(true), { signal });
  addEventListener("afterprint", () => print(false), { signal });
  return () => {
    listeners.abort();
    lab.disconnect();
  };
};
