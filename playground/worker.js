/** Runs the library in a browser: Python loads once, then each message is answered in turn. */

import { loadPyodide } from "./pyodide/pyodide.mjs";

const LIBRARY = "/library.zip"; // in Python's file system
const python = start();

python.then(
  ({ seconds }) => self.postMessage({ ready: true, seconds }),
  (error) => self.postMessage({ error: String(error) }),
);

self.onmessage = async ({ data }) => {
  const { answer } = await python;
  self.postMessage({ id: data.id, ...reply(answer, data) });
};

/** The answer to a message; wrong settings, and faults of the engine, are an `error`. */
function reply(answer, message) {
  try {
    return JSON.parse(answer(JSON.stringify(message)));
  } catch (error) {
    return { error: `Python failed: ${String(error).trim().split("\n").at(-1)}` };
  }
}

/** The engine's answer to a message, both as JSON, and how long it took to load. */
async function start() {
  const begun = performance.now();
  const library = fetch(new URL("library.zip", import.meta.url)).then((reply) => reply.arrayBuffer());
  const runtime = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  const loaded = performance.now();
  runtime.FS.writeFile(LIBRARY, new Uint8Array(await library));
  runtime.runPython(`import sys; sys.path.insert(0, "${LIBRARY}")`);
  const { answer } = runtime.pyimport("playground.engine.worker");
  const ready = performance.now();
  return { answer, seconds: { python: (loaded - begun) / 1000, library: (ready - loaded) / 1000 } };
}
