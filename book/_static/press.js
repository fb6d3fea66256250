// Boxes wider than the page scroll on their own; this lets the keyboard reach them and tells a screen reader what they are.
(() => {
  const boxes = [
    ["pre", "code, scrolls sideways"],
    [".pst-scrollable-table-container", "table, scrolls sideways"],
    [".cell_output .output", "output, scrolls sideways"],
    ["div.math", "formula, scrolls sideways"],
    ["mjx-container:not([display])", "formula, scrolls sideways"],
  ];

  const mark = () => {
    for (const [selector, label] of boxes) {
      for (const box of document.querySelectorAll(`.bd-article ${selector}`)) {
        if (box.matches("mjx-container")) {
          box.classList.toggle("wide", box.offsetWidth > box.closest("p, li, td, dd, section").clientWidth);
        }
        if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX === "auto") {
          box.tabIndex = 0;
          box.setAttribute("role", "group");
          box.setAttribute("aria-label", label);
        } else if (box.getAttribute("aria-label") === label) {
          ["tabindex", "role", "aria-label"].forEach((name) => box.removeAttribute(name));
        }
      }
    }
  };

  let waiting;
  const markSoon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(mark, 100);
  };

  for (const button of document.querySelectorAll("[data-print]")) {
    button.addEventListener("click", () => window.print());
  }
  window.addEventListener("resize", markSoon);
  window.addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(mark));
  document.addEventListener("toggle", markSoon, true);
  mark();
})();
