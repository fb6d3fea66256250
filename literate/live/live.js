// Lets a reader run the cells of a chapter in the page. Nothing is loaded before the button is pressed.
(() => {
  if (!location.protocol.startsWith("http")) return; // a page on a disk may not load what this needs
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  const chapter = location.pathname.split("/").pop().replace(/\.html$/, "");
  const kept = (id) => `live ${chapter} ${id}`;
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };

  const status = make("output", { className: "live-status", ariaLive: "polite" });
  const start = make("button", { type: "button", textContent: "Run this page" });
  const all = make("button", { type: "button", textContent: "Run all cells", hidden: true });
  const stop = make("button", { type: "button", textContent: "Stop", hidden: true });
  const reset = make("button", { type: "button", textContent: "Undo my changes", hidden: true });
  const about = make("small", { textContent: "loads about 10 MB, once; change the code, and do the exercises here" });
  const bar = make("div", { className: "live-bar" }, start, all, stop, reset, about, status);
  document.querySelector("article h1")?.after(bar);

  let worker = null;
  let cells = []; // id, code as it is now, whether it has run, what shows it
  let waiting = null; // for the worker: ready, or a cell that is done

  function tell(text) {
    status.textContent = text;
  }

  function begin() {
    worker = new Worker(`${here}worker.js`);
    const ready = new Promise((done, failed) => {
      worker.onmessage = ({ data }) => {
        if (data.kind === "progress") tell(`${data.text} …`);
        else if (data.kind === "failed") failed(new Error(data.text));
        else if (data.kind === "ready") done();
        else waiting?.(data.shown);
      };
      worker.onerror = (event) => failed(new Error(event.message));
    });
    worker.ready = ready;
    return ready;
  }

  function show(cell, shown) {
    cell.output.replaceChildren();
    const errors = shown.some(([kind]) => kind === "error");
    for (const [kind, data] of shown) {
      if (kind === "html") {
        if (!cell.keeps) cell.output.append(make("div", { innerHTML: data }));
      } else cell.output.append(make("pre", { className: `live-${kind}`, textContent: data }));
    }
    for (const woven of cell.woven) woven.hidden = cell.output.hasChildNodes();
    cell.element.classList.toggle("live-failed", errors);
    cell.done = !errors;
    return !errors;
  }

  async function runOne(cell) {
    cell.element.classList.add("live-running");
    const shown = await new Promise((done) => {
      waiting = done;
      worker.postMessage({ id: cell.id, code: cell.code() });
    });
    waiting = null;
    cell.element.classList.remove("live-running");
    return show(cell, shown);
  }

  // A cell may need all that stand before it.
  async function runTo(last) {
    if (waiting) return;
    stop.hidden = false;
    all.disabled = true;
    try {
      if (!worker) await begin();
      await worker.ready;
      const due = cells.slice(0, last + 1).filter((cell, n) => n === last || !cell.done);
      for (const [n, cell] of due.entries()) {
        tell(`running cell ${n + 1} of ${due.length} …`);
        if (!(await runOne(cell))) {
          cell.element.scrollIntoView({ block: "nearest" });
          return tell("an error: see the cell");
        }
      }
      tell(due.length > 1 ? `${due.length} cells have run` : "done");
    } catch (error) {
      tell(`this cannot run here: ${error.message}`);
      end();
    } finally {
      stop.hidden = true;
      all.disabled = false;
    }
  }

  function end() {
    worker?.terminate();
    worker = waiting = null;
    for (const cell of cells) {
      cell.done = false;
      cell.element.classList.remove("live-running");
    }
  }

  function open(element, { id, source, tags, needs }, n) {
    const woven = [...element.querySelectorAll(".cell_output .output:not(.text_html):not(:has(img, svg))")];
    const keeps = tags.includes("quiz") || Boolean(element.querySelector(".cell_output figure.movable, .cell_output svg"));
    const cell = { id, element, woven, keeps, done: Boolean(needs), code: () => source };
    cell.output = make("div", { className: "live-output" });
    element.append(cell.output);
    const block = element.querySelector(".cell_input .highlight");
    if (!block) return cell;
    if (needs) {
      block.after(make("small", { className: "live-needs", textContent: `not run in the page: it needs ${needs}` }));
      return cell;
    }
    const field = make("textarea", { className: "live-code", spellcheck: false, value: source });
    field.value = localStorage.getItem(kept(id)) ?? source;
    field.setAttribute("aria-label", `code of cell ${n + 1}`);
    const fit = () => (field.rows = field.value.split("\n").length);
    fit();
    field.addEventListener("input", () => {
      fit();
      for (const later of cells.slice(n)) later.done = Boolean(later.needs);
      if (field.value === source) localStorage.removeItem(kept(id));
      else localStorage.setItem(kept(id), field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
        event.preventDefault();
        runTo(n);
      }
    });
    const button = make("button", { type: "button", textContent: "Run" });
    button.setAttribute("aria-label", `run cell ${n + 1}`);
    button.addEventListener("click", () => runTo(n));
    block.replaceWith(field, button);
    cell.code = () => field.value;
    cell.undo = () => {
      localStorage.removeItem(kept(id));
      field.value = source;
      fit();
    };
    return cell;
  }

  start.addEventListener("click", async () => {
    start.disabled = true;
    try {
      const listed = await (await fetch(`${here}${chapter}.json`)).json();
      const elements = [...document.querySelectorAll("article div.cell")];
      if (elements.length !== listed.length) throw new Error("this page and its cells are of two builds");
      cells = listed.map((cell, n) => Object.assign(open(elements[n], cell, n), { needs: cell.needs }));
      await begin();
      tell("ready: press Run at a cell, or Shift and Enter in it");
      start.hidden = about.hidden = true;
      all.hidden = reset.hidden = false;
    } catch (error) {
      tell(`this cannot run here: ${error.message}`);
      start.disabled = false;
    }
  });
  all.addEventListener("click", () => runTo(cells.length - 1));
  stop.addEventListener("click", () => {
    end();
    stop.hidden = true;
    all.disabled = false;
    tell("stopped; what has run must run again");
  });
  reset.addEventListener("click", () => {
    for (const cell of cells) cell.undo?.();
    for (const cell of cells) cell.done = Boolean(cell.needs);
    tell("the code is as it was printed");
  });
})();
