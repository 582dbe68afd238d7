/** The graph: nodes to arrange, links to add and remove, and messages on their way. */

import { onSize, set, svg } from "./svg.js";

/** @typedef {import("./types.js").Point} Point */

const LEAST = 1e-9; // a weight below this is none
const RADIUS = 15;
const SIDE = 4; // how far from its link a message is drawn

export class Graph {
  /**
   * @param {SVGSVGElement} picture
   * @param {{onLink: (i: number, j: number) => void, onFocus: (node: number | null) => void,
   *   onChoose: (node: number) => void}} actions
   */
  constructor(picture, actions) {
    Object.assign(this, { picture, actions, width: 0, height: 0, n: 0 });
    this.layers = Object.fromEntries(
      ["links", "pairs", "server", "messages", "nodes"].map((name) => [name, svg("g", { class: name }, picture)]),
    );
    onSize(picture, (width, height) => {
      Object.assign(this, { width, height });
      set(picture, { viewBox: `0 0 ${width} ${height}` });
      this.place();
    });
  }

  /**
   * @param {number} n @param {{phases: number[][][]}} graph @param {import("./types.js").Run} run
   * @param {boolean} server does the drawn method run on a server?
   */
  show(n, graph, run, server) {
    if (n !== this.n) this.build(n);
    Object.assign(this, { graph, run, server });
    const links = new Map();
    for (const W of graph.phases) for (const key of server ? [] : linksOf(W)) links.set(key, true);
    this.known = [...links.keys()];
    this.layers.links.replaceChildren();
    this.lines = new Map();
    const pairs = server ? [...Array(n).keys()].map((node) => `${node}-s`) : this.known.map(undirected);
    for (const key of new Set(pairs)) this.lines.set(key, svg("g", { class: "link" }, this.layers.links));
    for (const line of this.lines.values()) {
      svg("path", { class: "line" }, line);
      svg("path", { class: "heads" }, line);
    }
    this.picture.classList.toggle("has-server", server);
    this.place();
  }

  /** The elements of n nodes and of all pairs. @param {number} n */
  build(n) {
    this.n = n;
    this.at = [...Array(n).keys()].map((node) => {
      const angle = 2 * Math.PI * (node / n) - Math.PI / 2;
      return /** @type {Point} */ ([0.5 + 0.5 * Math.cos(angle), 0.5 + 0.5 * Math.sin(angle)]);
    });
    for (const name of ["pairs", "nodes", "messages", "server"]) this.layers[name].replaceChildren();
    this.pairs = [];
    for (let i = 0; i < n; i += 1) {
      for (let j = i + 1; j < n; j += 1) {
        const line = svg("path", { class: "pair", "data-pair": `${i}-${j}` }, this.layers.pairs);
        svg("title", { text: `Add or remove the link between nodes ${i} and ${j}` }, line);
        line.addEventListener("click", () => this.actions.onLink(i, j));
        this.pairs.push({ i, j, line });
      }
    }
    const middle = svg("g", { class: "centre-server" }, this.layers.server);
    svg("rect", { x: -26, y: -13, width: 52, height: 26, rx: 5 }, middle);
    svg("text", { dy: "0.35em", text: "server" }, middle);
    this.nodes = this.at.map((_, node) => {
      const group = svg("g", { class: `vertex node-${node}`, tabindex: 0, role: "button" }, this.layers.nodes);
      set(group, { "aria-label": `Node ${node}: choose it, or move it with the arrow keys`, "data-node": node });
      svg("circle", { r: RADIUS }, group);
      svg("text", { dy: "0.35em", text: node }, group);
      svg("path", { class: "cross", d: "M-7-7 7 7M7-7-7 7" }, group);
      this.listen(group, node);
      return group;
    });
    this.dots = [];
  }

  /** @param {SVGElement} group @param {number} node */
  listen(group, node) {
    let moved = false;
    group.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      event.preventDefault();
      group.setPointerCapture(event.pointerId);
      group.focus();
      moved = false;
    });
    group.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      if (!group.hasPointerCapture(event.pointerId)) return;
      const box = this.picture.getBoundingClientRect();
      moved = true;
      this.move(node, this.inside(event.clientX - box.left, event.clientY - box.top));
    });
    group.addEventListener("pointerup", () => moved || this.actions.onChoose(node));
    group.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const move = moves[event.key];
      if (event.key === "Enter") this.actions.onChoose(node);
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      this.move(node, [this.at[node][0] + 0.05 * move[0], this.at[node][1] + 0.05 * move[1]]);
    });
    for (const [event, value] of /** @type {[string, number | null][]} */ ([
      ["focus", node], ["blur", null], ["pointerenter", node], ["pointerleave", null],
    ])) {
      group.addEventListener(event, () => this.actions.onFocus(value));
    }
  }

  /** @param {number} node @param {number[]} to */
  move(node, to) {
    this.at[node] = [Math.min(Math.max(to[0], -0.06), 1.06), Math.min(Math.max(to[1], -0.06), 1.06)];
    this.place();
  }

  /** Pixels of a place, and back. @param {Point} place @returns {Point} */
  pixel([x, y]) {
    const [w, h] = this.room();
    return [(this.width - w) / 2 + x * w, (this.height - h) / 2 + y * h];
  }

  /** @param {number} x @param {number} y @returns {Point} */
  inside(x, y) {
    const [w, h] = this.room();
    return [(x - (this.width - w) / 2) / w, (y - (this.height - h) / 2) / h];
  }

  room() {
    const h = Math.max(this.height - 50, 40);
    return [Math.min(this.width - 60, 1.2 * h), h];
  }

  /** Puts everything where its nodes are. */
  place() {
    if (!this.width || !this.graph) return;
    const at = this.at.map((place) => this.pixel(place));
    const middle = this.pixel([0.5, 0.5]);
    set(this.layers.server.firstElementChild, { transform: `translate(${middle[0]} ${middle[1]})` });
    this.nodes.forEach((group, node) => set(group, { transform: `translate(${at[node][0]} ${at[node][1]})` }));
    for (const { i, j, line } of this.pairs) set(line, { d: `M${at[i]}L${at[j]}` });
    for (const [key, line] of this.lines) {
      const [from, to] = this.ends(key, at, middle);
      const [stroke, heads] = line.children;
      set(stroke, { d: `M${from}L${to}` });
      const [i, j] = key.split("-").map(Number);
      const [forth, back] = [`${i}-${j}`, `${j}-${i}`].map((way) => this.known.includes(way));
      // A head shows the direction of a link that has only one.
      const one = forth ? head(from, to, RADIUS + 3) : head(to, from, RADIUS + 3);
      set(heads, { d: this.server || forth === back ? "" : one });
    }
    this.draw(this.moment ?? { round: 0, step: 0, exchange: false, part: 0 });
  }

  /** @param {string} key @param {Point[]} at @param {Point} middle @returns {Point[]} */
  ends(key, at, middle) {
    return key.split("-").map((end) => (end === "s" ? middle : at[Number(end)]));
  }

  /** Which messages a round has, as "sender-receiver". @param {number} round */
  messages(round) {
    const given = this.run.weights?.[round] ?? 0;
    const { phases } = this.run.phases?.length ? this.run : this.graph;
    const W = typeof given === "number" ? phases[given] : given;
    if (!this.server) return linksOf(W ?? []);
    const alive = this.run.alive?.[round] ?? [];
    // On a server a worker that takes part has a weight in some other worker's mean.
    return this.nodes.map((_, node) => node)
      .filter((node) => alive[node] && (typeof given === "number" || this.sampled(W, node)))
      .map((node) => `${node}-s`);
  }

  /** @param {number[][]} W @param {number} node */
  sampled(W, node) {
    return W.some((row, other) => other !== node && row[node] > LEAST);
  }

  /** @param {import("./types.js").Moment} moment */
  draw(moment) {
    this.moment = moment;
    if (!this.width || !this.run) return;
    const alive = this.run.alive?.[moment.round] ?? [];
    this.nodes.forEach((group, node) => group.classList.toggle("dead", alive[node] === false));
    const sent = this.messages(moment.round);
    const used = new Set(this.server ? sent : sent.map(undirected));
    for (const [key, line] of this.lines) {
      line.classList.toggle("idle", !used.has(key));
      line.classList.toggle("active", moment.exchange && used.has(key));
    }
    this.picture.classList.toggle("exchange", moment.exchange);
    this.placeMessages(moment.exchange ? sent : [], moment.part);
  }

  /** @param {string[]} sent @param {number} part */
  placeMessages(sent, part) {
    while (this.dots.length < sent.length) this.dots.push(svg("circle", { r: 4.5 }, this.layers.messages));
    const at = this.at.map((place) => this.pixel(place));
    const middle = this.pixel([0.5, 0.5]);
    this.dots.forEach((dot, index) => {
      const key = sent[index];
      set(dot, { visibility: key ? "visible" : "hidden" });
      if (!key) return;
      const [from, to] = this.ends(key, at, middle);
      const back = this.server && part > 0.5;
      const way = this.server ? 2 * (back ? 1 - part : part) : part;
      const sender = key.split("-")[0];
      const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
      const aside = (back ? -SIDE : SIDE) / length; // so that two messages do not cover each other
      set(dot, {
        class: back ? "mixed" : `node-${sender}`,
        cx: from[0] + way * (to[0] - from[0]) - aside * (to[1] - from[1]),
        cy: from[1] + way * (to[1] - from[1]) + aside * (to[0] - from[0]),
      });
    });
  }

  /** Makes one node stand out. @param {number | null} node */
  point(node) {
    this.nodes?.forEach((group, index) => group.classList.toggle("chosen", index === node));
  }
}

/** The links of a matrix as "sender-receiver". @param {number[][]} W */
export function linksOf(W) {
  return W.flatMap((row, i) => row.flatMap((weight, j) => (i !== j && weight > LEAST ? [`${j}-${i}`] : [])));
}

/** The pairs of a graph that have a link in some round, in either direction. @param {number[][][]} phases */
export function pairsOf(phases) {
  const keys = new Set(phases.flatMap(linksOf).map(undirected));
  return [...keys].map((key) => /** @type {[number, number]} */ (key.split("-").map(Number)));
}

/** @param {string} key */
function undirected(key) {
  return key.split("-").map(Number).sort((a, b) => a - b).join("-");
}

/** An arrow's head that touches the node at `to`. @param {Point} from @param {Point} to @param {number} gap */
function head(from, to, gap) {
  const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
  const [ux, uy] = [(to[0] - from[0]) / length, (to[1] - from[1]) / length];
  const [x, y] = [to[0] - gap * ux, to[1] - gap * uy];
  return `M${x} ${y}L${x - 10 * ux - 5 * uy} ${y - 10 * uy + 5 * ux}L${x - 10 * ux + 5 * uy} ${y - 10 * uy - 5 * ux}Z`;
}
