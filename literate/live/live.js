// Lets a reader run the cells of a chapter in the page. Nothing is loaded before the button is pressed.
(() => {
  if (!location.protocol.startsWith("http")) return; // a page on a disk may not load what this needs
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  const chapter = location.pathname.split("/").pop().replace(/\.html$/, "");
  const kept = (id) => `live ${chapter} ${id}`;
  const storage = (what, ...args) => {
    try {
      return localStorage[what](...args);
    } catch {
      return null; // a browser may forbid it: then nothing is kept
    }
  };
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
  const about = make("small", { textContent: "loads 11 to 19 MB, once; change the code, and do the exercises here" });
  document.querySelector("article h1")?.after(make("div", { className: "live-bar" }, start, all, stop, reset, about, status));

  let cells = [];
  let python = null; // a worker, the promise that it is ready, and who waits for which of its answers
  let busy = false;

  function tell(text) {
    status.textContent = text;
  }

  function begin() {
    const worker = new Worker(`${here}worker.js`);
    const waiting = new Map();
    const mine = { worker, waiting };
    const fail = (error) => {
      mine.refuse(error);
      for (const { failed } of waiting.values()) failed(error);
      waiting.clear();
    };
    mine.fail = fail;
    mine.ready = new Promise((done, refuse) => {
      mine.refuse = refuse;
      worker.onmessage = ({ data }) => {
        if (data.kind === "progress") tell(`${data.text} …`);
        else if (data.kind === "ready") done();
        else if (data.kind === "done") {
          waiting.get(data.id)?.done(data.shown);
          waiting.delete(data.id);
        } else fail(new Error(data.text));
      };
      worker.onerror = (event) => fail(new Error(event.message || "Python could not be loaded"));
    });
    python = mine;
    return mine.ready;
  }

  function end(reason) {
    python?.worker.terminate();
    python?.fail(new Error(reason));
    python = null;
    for (const cell of cells) cell.done = Boolean(cell.needs);
  }

  function show(cell, shown) {
    cell.output.replaceChildren();
    for (const [kind, data] of shown) {
      if (kind !== "html") cell.output.append(make("pre", { className: `live-${kind}`, textContent: data }));
      else if (!cell.keeps) cell.output.append(make("div", { innerHTML: data }));
    }
    for (const woven of cell.woven) woven.hidden = cell.output.hasChildNodes();
    const failed = shown.some(([kind]) => kind === "error");
    cell.element.classList.toggle("live-failed", failed);
    return !failed;
  }

  // True if it ran to its end. What is typed meanwhile has not run.
  async function runOne(cell) {
    cell.element.classList.add("live-running");
    const { edits } = cell;
    try {
      const shown = await new Promise((done, failed) => {
        python.waiting.set(cell.id, { done, failed });
        python.worker.postMessage({ id: cell.id, code: cell.code() });
      });
      const good = show(cell, shown);
      cell.done = good && cell.edits === edits;
      return good;
    } finally {
      cell.element.classList.remove("live-running");
    }
  }

  // A cell may need all that stand before it.
  async function runTo(last) {
    if (busy) return;
    busy = all.disabled = reset.disabled = true;
    stop.hidden = false;
    try {
      await (python ?? (begin(), python)).ready;
      const due = cells.slice(0, last + 1).filter((cell, n) => !cell.needs && (n === last || !cell.done));
      for (const [n, cell] of due.entries()) {
        tell(`running cell ${n + 1} of ${due.length} …`);
        if (!(await runOne(cell))) {
          cell.element.scrollIntoView({ block: "nearest" });
          return tell("an error: see the cell");
        }
      }
      tell(due.length > 1 ? `${due.length} cells have run` : "done");
    } catch (error) {
      if (python) end(error.message);
      tell(error.message);
    } finally {
      stop.hidden = true;
      busy = all.disabled = reset.disabled = false;
    }
  }

  function open(element, { id, source, tags, needs }, n) {
    const woven = [...element.querySelectorAll(".cell_output .output:not(.text_html):not(:has(img, svg))")];
    const keeps = tags.includes("quiz") || Boolean(element.querySelector(".cell_output figure.movable, .cell_output svg"));
    const output = make("div", { className: "live-output" });
    const cell = { id, element, woven, keeps, needs, output, done: Boolean(needs), edits: 0, code: () => source };
    element.append(output);
    const block = element.querySelector(".cell_input .highlight");
    if (!block) return cell;
    if (needs) {
      block.after(make("small", { className: "live-needs", textContent: `not run in the page: it needs ${needs}` }));
      return cell;
    }
    const field = make("textarea", { className: "live-code", spellcheck: false });
    field.setAttribute("aria-label", `code of cell ${n + 1}`);
    const put = (text) => {
      field.value = text;
      field.rows = text.split("\n").length;
      for (const later of cells.slice(n)) Object.assign(later, { done: Boolean(later.needs), edits: later.edits + 1 });
    };
    put(storage("getItem", kept(id)) ?? source);
    field.addEventListener("input", () => {
      put(field.value);
      if (field.value === source) storage("removeItem", kept(id));
      else storage("setItem", kept(id), field.value);
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
      storage("removeItem", kept(id));
      put(source);
    };
    return cell;
  }

  start.addEventListener("click", async () => {
    start.disabled = true;
    try {
      const listed = await (await fetch(`${here}${chapter}.json`)).json();
      const elements = [...document.querySelectorAll("article div.cell")];
      if (elements.length !== listed.length) throw new Error("this page and its cells are of two builds");
      await begin();
      cells = listed.map((cell, n) => open(elements[n], cell, n));
      tell("ready: press Run at a cell, or Shift and Enter in it");
      start.hidden = about.hidden = true;
      all.hidden = reset.hidden = false;
      all.focus();
    } catch (error) {
      end(error.message);
      tell(`this cannot run here: ${error.message}`);
      start.disabled = false;
    }
  });
  all.addEventListener("click", () => runTo(cells.length - 1));
  stop.addEventListener("click", () => end("stopped; what has run must run again"));
  reset.addEventListener("click", () => {
    for (const cell of cells) cell.undo?.();
    tell("the code is as it was printed");
  });
})();
