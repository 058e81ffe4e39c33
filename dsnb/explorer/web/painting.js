// What the reader sees is painted first; tables out of view are laid out after it.

// In the next frame, tables out of view are skipped (style.css). The class is there only while the browser paints, so
// scripts that read the page, such as `innerText`, find all text at any other time.
const paintViewFirst = (root) => requestAnimationFrame(() => {
  root.classList.add("dsnb-painting");
  setTimeout(() => root.classList.remove("dsnb-painting"));
});
