/** Runs the library in a browser: Python loads once, then each message with settings is answered by their result. */

import { loadPyodide } from "./pyodide/pyodide.mjs";

const LIBRARY = "/library.zip"; // in Python's file system
const exports_ = [];
let newest = null;
let answer = null;

self.onmessage = ({ data }) => {
  if (data.export) exports_.push(data);
  else newest = data;
  if (answer) setTimeout(work); // after all messages that have arrived by now
};

start().catch((error) => self.postMessage({ error: String(error) }));

async function start() {
  const begun = performance.now();
  const library = fetch(new URL("library.zip", import.meta.url)).then((reply) => reply.arrayBuffer());
  const python = await loadPyodide({
    indexURL: new URL("pyodide/", import.meta.url).href,
  });
  const loaded = performance.now();
  python.FS.writeFile(LIBRARY, new Uint8Array(await library));
  answer = python.runPython(`import sys; sys.path.insert(0, "${LIBRARY}")
from playground.engine.worker import answer
answer`);
  const ready = performance.now();
  self.postMessage({ ready: true, seconds: { python: (loaded - begun) / 1000, library: (ready - loaded) / 1000 } });
  work();
}

/** Answers what was asked: all exports, and of the settings the newest. */
function work() {
  const asked = exports_.splice(0);
  if (newest) asked.push(newest);
  newest = null;
  for (const message of asked) self.postMessage({ id: message.id, ...JSON.parse(answer(JSON.stringify(message))) });
}
