/** The page: its state, and who draws what when it changes. */

import { Chart } from "./charts.js";
import { markCode, showCode } from "./code.js";
import { Controls } from "./controls.js";
import { Engine } from "./engine.js";
import { Graph, pairsOf } from "./graph.js";
import { Player, mayMove } from "./player.js";
import { METHODS, PRESETS, forEngine, fromHash, graphOf, runOrder, toHash } from "./settings.js";
import { listenToSharing } from "./share.js";
import { Spectrum, drawGauge } from "./spectrum.js";
import { Stage } from "./stage.js";
import { byId, html, set } from "./svg.js";
import { listenToTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { curveWords, phaseWords, summaryWords } from "./words.js";

/** @typedef {import("./types.js").Settings} Settings */
/** @typedef {import("./types.js").Result} Result */

/** @type {{settings: Settings, drawn: number}} */
let state;
/** What is shown: a result, with the settings it is of. @type {{result: Result, settings: Settings, drawn: number}} */
let shown;
let asked = 0; // which method is drawn in the result that comes next
let changes = 0; // how often the settings have changed
let writing = 0; // the timer that writes the link

const player = new Player({ draw, summarise });
const stage = new Stage(byId("stage"), drag, point);
const graph = new Graph(byId("graph"), { onLink: toggleLink, onFocus: point, onChoose: choose });
const charts = [new Chart(byId("error-rounds"), "round"), new Chart(byId("error-bytes"), "byte")];
const spectrum = new Spectrum(byId("spectrum"), byId("spectrum-words"));
const controls = new Controls(() => state, changed);
const engine = new Engine({
  onReady: () => byId("notice").dataset.loading && notice(""),
  onResult: (result, settings) => {
    notice("");
    show(result, settings, asked);
  },
  onError: (sentence) => notice(sentence, true),
  onFailure: () =>
    notice("Python could not be loaded: the stories still play, but settings have no effect.", true),
  onBusy: (busy) => document.body.classList.toggle("busy", busy),
});

/** A message in one line; none if it is empty. @param {string} text @param {boolean} [bad] */
function notice(text, bad = false) {
  set(byId("notice"), { text, hidden: !text, class: bad ? "bad" : "", "data-loading": null });
}

/** The settings are others: the controls and the link follow. */
function follow() {
  changes += 1;
  controls.show();
  clearTimeout(writing); // browsers refuse to write it many times a second
  writing = setTimeout(() => history.replaceState(null, "", toHash(state.settings, state.drawn)), 300);
}

/** The reader changed a setting. */
function changed() {
  for (const button of byId("stories").children) set(button, { "aria-pressed": false });
  follow();
  asked = state.drawn;
  if (engine.failed) return engine.actions.onFailure();
  if (!engine.ready) {
    notice("Python is loading. The recorded run plays; your settings follow in a few seconds.");
    byId("notice").dataset.loading = "true";
  }
  engine.compute(structuredClone(forEngine(state.settings, state.drawn)));
}

/** A result is there. @param {Result} result @param {Settings} settings as the engine has them @param {number} drawn */
function show(result, settings, drawn) {
  shown = { result, settings, drawn };
  const [run] = result.runs;
  const timeline = new Timeline(run, settings.methods[0].tau);
  const server = run.on.startsWith("server");
  const order = runOrder(result.runs.length, drawn);
  const runs = order.map((index) => result.runs[index]);
  stage.show(result, timeline);
  graph.show(settings.n, result.graph, run, server);
  for (const chart of charts) chart.show(runs, settings.rounds, settings.events.map((event) => event.round));
  byId("curves").replaceChildren(
    ...order.map((_, slot) => html("li", {}, html("i", { class: `sample slot-${slot}` }), html("span", {}))),
  );
  spectrum.show(run);
  showCode(run);
  delete byId("code").dataset.now;
  set(byId("graph-name"), { text: run.on });
  const elsewhere = server && settings.graph.kind !== "server";
  const used = `${run.label} runs on a server. The graph is for the other methods.`;
  const hint = Object.values(PRESETS).find(({ graph: { kind } }) => kind === settings.graph.kind)?.hint;
  set(byId("graph-note"), { text: elsewhere ? used : result.graph.note || hint || "Your own graph." });
  player.show(timeline, settings.events);
  document.body.dataset.shown = String(changes);
  performance.mark("shown");
  if (run.diverged_at !== null) {
    notice(`${run.label} diverges: in round ${run.diverged_at} its numbers are too large. Try a smaller γ or τ.`, true);
  }
}

/** Everything that follows the playhead. @param {number} position */
function draw(position) {
  if (!shown) return;
  const { timeline } = player;
  const moment = timeline.moment(position);
  const measured = timeline.measured(position);
  const { result, settings, drawn } = shown;
  const { tracks } = METHODS[settings.methods[0].name];
  stage.draw(position);
  graph.draw(moment);
  for (const chart of charts) chart.draw(measured);
  drawGauge(result.runs[0], tracks, measured);
  markCode(moment);
  set(byId("phase"), { text: phaseWords(moment, timeline, result.runs[0], tracks) });
  const clock = `round ${Math.min(measured, timeline.rounds)} / ${settings.rounds}`;
  set(byId("clock"), { text: clock });
  set(byId("scrubber"), { "aria-valuetext": clock });
  runOrder(result.runs.length, drawn).forEach((index, slot) => {
    set(byId("curves").children[slot].lastElementChild, { text: curveWords(result.runs[index], measured) });
  });
}

/** The round's numbers, for those who do not see the pictures. */
function summarise() {
  if (shown) set(byId("summary"), { text: summaryWords(shown.result.runs, player.timeline.measured(player.position)) });
}

/** @param {number | null} node */
function point(node) {
  stage.point(node);
  graph.point(node);
}

/** @param {number} node */
function choose(node) {
  byId("victim").value = String(node);
}

/** A minimiser was moved. @param {number} node @param {import("./types.js").Point} centre */
function drag(node, centre) {
  const centres = [...(state.settings.problem.centres ?? shown.result.problem.centres)];
  centres[node] = centre;
  // A link carries three decimals, so that is what is computed with.
  const rounded = centres.map((one) => one.map((value) => Number(value.toFixed(3))));
  state.settings.problem.centres = /** @type {import("./types.js").Point[]} */ (rounded);
  stage.own(node, centre);
  changed();
}

/** Adds or removes a link; a preset becomes a graph of its own. @param {number} i @param {number} j */
function toggleLink(i, j) {
  const { settings } = state;
  const edges = settings.graph.kind === "edges" ? settings.graph.edges : pairsOf(shown.result.graph.phases);
  const rest = edges.filter(([a, b]) => Math.min(a, b) !== Math.min(i, j) || Math.max(a, b) !== Math.max(i, j));
  settings.graph = graphOf({
    kind: "edges",
    edges: rest.length < edges.length ? rest : [...edges, [Math.min(i, j), Math.max(i, j)]],
    lost: settings.graph.lost,
  });
  changed();
}

/** A node fails, or the corrections are repaired, at the next start of a round. @param {object} event */
function happens(event) {
  const { settings } = state;
  const { ticks } = player.timeline;
  const round = Math.min(Math.ceil(player.position / ticks - 1e-9), 199);
  settings.events = [...settings.events, { ...event, round }].sort((a, b) => a.round - b.round);
  settings.rounds = Math.min(200, Math.max(settings.rounds, round + 30));
  changed();
}

const nodeOf = (/** @type {string} */ id) => Number(byId(id).value);
byId("link").addEventListener("click", () => toggleLink(nodeOf("link-from"), nodeOf("link-to")));
byId("kill").addEventListener("click", () => happens({ kind: "kill", node: nodeOf("victim") }));
byId("repair").addEventListener("click", () => happens({ kind: "repair" }));
listenToTheme();
listenToSharing(
  () => forEngine(state.settings, state.drawn),
  () => new URL(toHash(state.settings, state.drawn), location.href).href,
  engine,
  notice,
);

/** Takes the link's settings, if it has any; says so if they are not valid. @returns {boolean} */
function takeLink() {
  if (!location.hash.includes("=")) return false;
  try {
    state = fromHash(location.hash);
    changed();
    return true;
  } catch (error) {
    const why = /** @type {Error} */ (error).message;
    notice(`This link cannot be read (${why}): you see the first story instead.`, true);
    return false;
  }
}

/** Plays a story, whose result was computed when the site was built. @param {number} index */
async function recorded(index) {
  const before = changes;
  const { settings, result } = await load(index ? `story-${index}.json` : "default.json");
  if (before !== changes) return; // the reader was faster
  engine.forget();
  notice("");
  player.jump(0, false);
  show(result, settings, 0);
  if (mayMove()) player.play();
}

/** @param {string} name */
async function load(name) {
  const reply = await fetch(new URL(name, import.meta.url));
  return reply.json();
}

/** @param {{title: string, text: string, settings: Settings}[]} stories */
function tell(stories) {
  stories.forEach(({ title, text, settings }, index) => {
    const badge = html("b", { "aria-hidden": true }, String(index + 1));
    const button = html("button", { "aria-pressed": false }, badge, title);
    button.addEventListener("click", () => {
      state = { settings: structuredClone(settings), drawn: 0 };
      follow();
      for (const other of byId("stories").children) set(other, { "aria-pressed": other === button });
      set(byId("story-text"), { text });
      recorded(index).catch(() => notice("This story could not be loaded: try again.", true));
    });
    byId("stories").append(button);
  });
}

async function open() {
  const [first, stories] = await Promise.all(["default.json", "stories.json"].map(load));
  state = { settings: structuredClone(first.settings), drawn: 0 };
  tell(stories);
  show(first.result, first.settings, 0);
  controls.show();
  engine.start(first.live !== false);
  if (!takeLink()) {
    set(byId("stories").firstElementChild, { "aria-pressed": true });
    set(byId("story-text"), { text: stories[0].text });
    if (mayMove()) player.play();
  }
  addEventListener("hashchange", takeLink);
}

open().catch(() => notice("The recorded run could not be loaded: try to load the page again.", true));
