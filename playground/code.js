/** The method's own lines, with those marked that run now. */

import { byId, html, set } from "./svg.js";

const WORDS = "def return if else for in and or not None True False self".replaceAll(" ", "|");
const TOKEN = new RegExp(`(#.*$)|("(?:[^"\\\\]|\\\\.)*")|\\b(${WORDS})\\b|(\\b\\d+(?:\\.\\d+)?\\b)`, "gm");
const CLASSES = ["comment", "string", "keyword", "number"];
const WHEN = {
  correction: "in every local step: x ← x − γ (g + correction)",
  message: "at the end of a round: what a node sends",
  merge: "after the exchange: the new state from what was mixed",
  step: "and then: a step on the change of the whole round",
};

/** @param {import("./types.js").Run} run */
export function showCode(run) {
  const { file, name, lines } = run.source;
  set(byId("code-name"), { text: name });
  set(byId("code-file"), { text: file });
  byId("code").replaceChildren(
    ...lines.map(({ part, code }) =>
      html(
        "section",
        { class: "part", "data-part": part },
        html("h3", {}, WHEN[part]),
        html("pre", {}, html("code", {}, ...code.split("\n").map(line))),
      ),
    ),
  );
}

/** A line with its indentation, wrapped below itself. @param {string} text */
function line(text) {
  const indent = text.length - text.trimStart().length;
  const made = html("span", { class: "line", style: `--indent: ${indent}ch` });
  const rest = text.trimStart();
  let last = 0;
  for (const found of rest.matchAll(TOKEN)) {
    made.append(rest.slice(last, found.index));
    const kind = CLASSES[found.slice(1).findIndex(Boolean)];
    made.append(html("span", { class: kind }, found[0]));
    last = found.index + found[0].length;
  }
  made.append(rest.slice(last) || "\u200b");
  return made;
}

/** @param {import("./types.js").Moment} moment */
export function markCode({ exchange, part }) {
  const after = byId("code").children.length > 3 && part > 0.75 ? "step" : "merge";
  const now = !exchange ? "correction" : part < 0.5 ? "message" : after;
  if (byId("code").dataset.now === now) return;
  byId("code").dataset.now = now;
  for (const section of byId("code").children) {
    const on = /** @type {HTMLElement} */ (section).dataset.part === now;
    section.classList.toggle("running", on);
    set(section, { "aria-current": on ? "step" : null });
  }
}
