// Python for a chapter, in a worker: it can be ended while it computes.
importScripts("pyodide/pyodide.js");

let run;

async function start() {
  const say = (text) => postMessage({ kind: "progress", text });
  say("loading Python");
  const python = await loadPyodide({ indexURL: "pyodide/" });
  // NumPy asks for this where an array is large; nothing else provides it here
  python._module.mergeLibSymbols({ backtrace: Object.assign(() => 0, { sig: "iii" }) }, "shim");
  for (const name of ["numpy", "packages"]) {
    say(`loading ${name === "numpy" ? "NumPy" : "the book's code"}`);
    const answer = await fetch(`${name}.zip`);
    if (!answer.ok) throw new Error(`${name}.zip: ${answer.status}`);
    python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: "/lib/python3.12/site-packages" });
  }
  python.runPython(await (await fetch("shim.py")).text());
  run = python.globals.get("run");
  postMessage({ kind: "ready" });
}

const started = start();
started.catch((error) => postMessage({ kind: "failed", text: String(error) }));

onmessage = async ({ data: { id, code } }) => {
  try {
    await started;
    const shown = run(code);
    postMessage({ kind: "done", id, shown: shown.toJs() });
    shown.destroy();
  } catch (error) {
    postMessage({ kind: "failed", text: String(error) });
  }
};
