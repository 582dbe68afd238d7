/** The panels of settings: each control changes one of them and calls `change`. */

import { LIMITS, METHODS, PRESETS, canLose, graphOf, methodOf } from "./settings.js";
import { brief, byId, html, set } from "./svg.js";

/** @typedef {import("./types.js").Settings} Settings */
/** @typedef {{settings: Settings, drawn: number}} State */
/**
 * @typedef {Object} Slider
 * @property {string} name @property {string} sign @property {string} text
 * @property {(state: State) => number} get @property {(state: State, value: number) => void} put
 * @property {boolean} [powers] is its scale logarithmic?
 * @property {number} [step] @property {(state: State) => boolean} [on] does it have an effect?
 * @property {(value: number) => string} [show] @property {(state: State) => number} [most]
 */

const drawn = (/** @type {State} */ state) => state.settings.methods[state.drawn];
/** γ and τ are of all methods. @param {"gamma" | "tau"} name @returns {(state: State, value: number) => void} */
const ofAll = (name) => ({ settings }, value) => settings.methods.forEach((one) => (one[name] = value));

/** @type {Slider[]} */
const METHOD_SLIDERS = [
  { name: "tau", sign: "τ", text: "local steps in a round", get: (s) => drawn(s).tau, put: ofAll("tau"), step: 1 },
  { name: "gamma", sign: "γ", text: "stepsize", get: (s) => drawn(s).gamma, put: ofAll("gamma"), powers: true },
  {
    name: "beta", sign: "β", text: "part of the correction's change", step: 0.01,
    get: (s) => drawn(s).beta, put: (s, value) => (drawn(s).beta = value),
    on: (s) => "beta" in METHODS[drawn(s).name],
  },
  {
    name: "momentum", sign: "μ", text: "outer momentum", step: 0.05,
    get: (s) => drawn(s).momentum, put: (s, value) => (drawn(s).momentum = value),
  },
];

/** @type {Slider[]} */
const DATA_SLIDERS = [
  { name: "n", sign: "n", text: "nodes", get: (s) => s.settings.n, put: resize, step: 1 },
  {
    name: "spread", sign: "", text: "how much the data differ", step: 0.05,
    get: ({ settings }) => settings.problem.spread,
    put: ({ settings }, value) => Object.assign(settings.problem, { spread: value, centres: null }),
  },
  {
    name: "noise", sign: "σ", text: "noise of a gradient", step: 0.02,
    get: ({ settings }) => settings.problem.noise, put: ({ settings }, value) => (settings.problem.noise = value),
  },
  {
    name: "lost", sign: "", text: "links that fail", step: 0.05, show: (value) => `${Math.round(100 * value)} %`,
    get: ({ settings }) => settings.graph.lost, put: ({ settings }, value) => (settings.graph.lost = value),
    on: ({ settings }) => canLose(settings.graph.kind),
  },
  {
    name: "sampled", sign: "s", text: "nodes that the server calls", step: 1,
    get: ({ settings }) => settings.graph.sampled ?? settings.n, most: ({ settings }) => settings.n,
    put: ({ settings }, value) => (settings.graph.sampled = value < settings.n ? value : null),
    on: ({ settings }) => settings.graph.kind === "server",
  },
  {
    name: "rounds", sign: "R", text: "rounds", step: 10, get: ({ settings }) => settings.rounds,
    put: ({ settings }, value) => {
      settings.rounds = value;
      settings.events = settings.events.filter((event) => event.round < value);
    },
  },
];

/** Another number of nodes: what names a node that is gone, goes too. @param {State} state @param {number} n */
function resize({ settings }, n) {
  const { graph, problem } = settings;
  settings.n = n;
  settings.events = [];
  problem.centres = null;
  if (graph.kind === "edges") settings.graph = graphOf({ lost: graph.lost });
  graph.sampled = graph.sampled && graph.sampled < n ? graph.sampled : null;
}

export class Controls {
  /** @param {() => State} state @param {() => void} change */
  constructor(state, change) {
    Object.assign(this, { state, change });
    this.sliders = [
      ...METHOD_SLIDERS.map((slider) => this.slider(slider, byId("method-sliders"))),
      ...DATA_SLIDERS.map((slider) => this.slider(slider, byId("data-sliders"))),
    ];
    for (const [name, { label, hint, graph }] of Object.entries(PRESETS)) {
      const button = html("button", { title: hint, "data-preset": name }, label);
      button.addEventListener("click", () => {
        this.state().settings.graph = graphOf(graph);
        change();
      });
      byId("presets").append(button);
    }
    byId("new-data").addEventListener("click", () => {
      const { problem } = this.state().settings;
      Object.assign(problem, { seed: (problem.seed + 1) % 1000, centres: null });
      change();
    });
    byId("add-method").addEventListener("click", () => {
      const { methods } = this.state().settings;
      const unused = Object.keys(METHODS).find((name) => methods.every((one) => one.name !== name)) ?? "STGT";
      methods.push(methodOf(unused, methods[0]));
      change();
    });
  }

  /** @param {Slider} slider @param {HTMLElement} parent */
  slider(slider, parent) {
    const { name, sign, text, powers, step } = slider;
    const limits = LIMITS[name] ?? [1, 8];
    const [min, max] = powers ? limits.map(Math.log10) : limits;
    const input = html("input", { type: "range", id: name, min, max, step: powers ? 0.01 : step });
    const output = html("output", { for: name });
    const label = html("label", { for: name }, html("b", {}, sign), ` ${text}`);
    parent.append(html("div", { class: "slider" }, label, output, input));
    input.addEventListener("input", () => {
      const given = Number(/** @type {HTMLInputElement} */ (input).value);
      slider.put(this.state(), powers ? Number((10 ** given).toPrecision(2)) : given);
      this.change();
    });
    return () => {
      const value = slider.get(this.state());
      const words = (slider.show ?? brief)(value);
      const on = slider.on?.(this.state()) ?? true;
      set(input, { disabled: !on, max: slider.most?.(this.state()) ?? max, "aria-valuetext": words });
      /** @type {HTMLInputElement} */ (input).value = String(powers ? Math.log10(value) : value);
      set(output, { text: on ? words : "–" });
      input.parentElement?.classList.toggle("off", !on);
    };
  }

  /** Shows the state, without calling `change`. */
  show() {
    const { settings } = this.state();
    for (const update of this.sliders) update();
    for (const button of byId("presets").children) {
      const { kind, lost = 0 } = PRESETS[button.dataset.preset].graph;
      const on = settings.graph.kind === kind && Boolean(settings.graph.lost) === Boolean(lost);
      set(button, { "aria-pressed": on });
    }
    for (const id of ["link-from", "link-to", "victim"]) this.nodes(byId(id), settings.n);
    const [from, to] = [byId("link-from"), byId("link-to")];
    if (from.value === to.value) to.value = from.value === "1" ? "0" : "1";
    this.methods();
    byId("events").replaceChildren(...settings.events.map((event, index) => this.event(event, index)));
  }

  /** A choice of a node, which keeps its value. @param {HTMLSelectElement} choice @param {number} n */
  nodes(choice, n) {
    if (choice.options.length === n) return;
    const value = choice.value && Number(choice.value) < n ? choice.value : "0";
    choice.replaceChildren(...[...Array(n).keys()].map((node) => html("option", { value: node }, String(node))));
    choice.value = value;
  }

  /** The list of methods; the focus stays where it is. */
  methods() {
    const { settings, drawn: place } = this.state();
    const rows = byId("methods");
    const focused = rows.contains(document.activeElement) ? document.activeElement?.id : null;
    rows.replaceChildren(
      ...settings.methods.map((method, index) => {
        const { label } = METHODS[method.name];
        const radio = html("input", { type: "radio", name: "drawn", id: `draw-${index}`, checked: index === place });
        set(radio, { "aria-label": `Draw ${label}`, title: "Draw this one" });
        radio.addEventListener("change", () => {
          this.state().drawn = index;
          this.change();
        });
        const options = Object.entries(METHODS).map(([name, { label }]) => html("option", { value: name }, label));
        const made = html("select", { id: `method-${index}`, "aria-label": `Method ${index + 1}` }, ...options);
        const choice = /** @type {HTMLSelectElement} */ (made);
        choice.value = method.name;
        choice.addEventListener("change", () => {
          settings.methods[index] = methodOf(choice.value, method);
          this.change();
        });
        const remove = html("button", { id: `remove-${index}`, "aria-label": `Remove ${label}`, title: "Remove" }, "×");
        set(remove, { disabled: settings.methods.length === 1 });
        remove.addEventListener("click", () => {
          settings.methods.splice(index, 1);
          if (index < place || place === settings.methods.length) this.state().drawn -= 1;
          this.change();
        });
        const sample = html("i", { class: `sample slot-${index}`, "aria-hidden": "true" });
        return html("div", { class: "method", "data-drawn": index === place }, radio, sample, choice, remove);
      }),
    );
    if (focused) (byId(focused) ?? byId("add-method")).focus();
    set(byId("add-method"), { disabled: settings.methods.length === 3 });
  }

  /** @param {import("./types.js").Change} event @param {number} index */
  event(event, index) {
    const words = `round ${event.round}: ${event.kind === "kill" ? `node ${event.node} fails` : "repair"}`;
    const button = html("button", { "aria-label": `Undo ${words}`, title: "Undo" }, words, " ×");
    button.addEventListener("click", () => {
      this.state().settings.events.splice(index, 1);
      this.change();
    });
    return html("li", { class: event.kind }, button);
  }
}
