/** The plane: contours, models with their trails, arrows, the minimum, and minimisers that can be dragged. */

import { arrow, ellipse, extent, gradient, path, star } from "./geometry.js";
import { brief, onSize, set, svg } from "./svg.js";
import { between, meanOf } from "./timeline.js";

/** @typedef {import("./types.js").Point} Point */
/** @typedef {import("./types.js").Result} Result */
/** @typedef {import("./types.js").Moment} Moment */

const TRAILS = [1, 0.5, 0.2]; // the parts of a trail that are drawn over each other, so that it fades
const TRAIL_ROUNDS = 3;
const LEVELS = 9;
const STAR = star(16, 6.8);

export class Stage {
  /**
   * @param {SVGSVGElement} picture
   * @param {(node: number, centre: Point) => void} onDrag a minimiser was moved
   * @param {(node: number | null) => void} onFocus a node was pointed at
   */
  constructor(picture, onDrag, onFocus) {
    Object.assign(this, { picture, onDrag, onFocus });
    this.width = this.height = 0;
    this.dragging = /** @type {number | null} */ (null);
    // What stands still has a picture of its own below, so that it is not painted for every frame.
    const ground = svg("svg", { class: "ground", "aria-hidden": true });
    picture.before(ground);
    this.layers = Object.fromEntries(
      ["hills", "own", "paths", "centres", "goals", "arrows", "models", "gap"].map((name, index) => [
        name,
        svg("g", { class: name }, index < 2 ? ground : picture),
      ]),
    );
    onSize(picture, (width, height) => {
      Object.assign(this, { width, height });
      for (const one of [ground, picture]) set(one, { viewBox: `0 0 ${width} ${height}` });
      if (this.result) this.show(this.result, this.timeline);
    });
  }

  /** A new result. @param {Result} result @param {import("./timeline.js").Timeline} timeline */
  show(result, timeline) {
    Object.assign(this, { result, timeline, members: "" });
    if (!this.width) return;
    if (this.dragging === null) this.fit();
    const { centres } = result.problem;
    if (centres.length !== this.nodes?.length) this.build(centres.length);
    // What is dragged is ahead of the results.
    centres.forEach((centre, node) => this.own(node, node === this.dragging ? this.dragged : centre));
    this.arrowScale = this.scaleOfArrows();
    this.draw(this.position ?? 0);
  }

  /** The part of the plane that is seen: all minimisers, the start and the minimum, on a grid of halves. */
  fit() {
    const { centres, x0, optimum } = this.result.problem;
    const points = [...centres, x0, optimum];
    const [left, right] = extent(points.map((point) => point[0]));
    const [bottom, top] = extent(points.map((point) => point[1]));
    const scale = Math.min((this.width - 90) / (right - left), (this.height - 110) / (top - bottom));
    const middle = [(left + right) / 2, (bottom + top) / 2];
    this.scale = scale;
    this.origin = [this.width / 2 - scale * middle[0], this.height / 2 + 10 + scale * middle[1]];
  }

  /** The pixel of a point of the plane, kept near the picture. @param {Point} point @returns {Point} */
  pixel([x, y]) {
    const limit = 5000;
    const clip = (/** @type {number} */ value) => Math.max(-limit, Math.min(limit, value));
    return [clip(this.origin[0] + this.scale * x), clip(this.origin[1] - this.scale * y)];
  }

  /** The elements of n nodes. @param {number} n */
  build(n) {
    for (const layer of Object.values(this.layers)) layer.replaceChildren();
    const { paths, own, centres, goals, arrows, models, gap } = this.layers;
    this.meanPath = svg("path", { class: "mean-path" }, paths);
    this.formerGoal = svg("path", { class: "former-goal", d: STAR }, goals);
    this.goal = svg("path", { class: "goal", d: STAR }, goals);
    this.goalName = svg("text", { class: "goal-name", text: "x*" }, goals);
    this.nodes = [...Array(n).keys()].map((node) => {
      const colour = `node-${node}`;
      const handle = svg("g", { class: `centre ${colour}`, tabindex: 0, role: "button" }, centres);
      set(handle, { "aria-label": `Minimiser of node ${node}: drag it, or use the arrow keys`, "data-node": node });
      svg("circle", { r: 15, class: "hit" }, handle);
      svg("path", { d: "M-6-6H6V6H-6Z" }, handle);
      svg("text", { y: -11, text: `m${"₀₁₂₃₄₅₆₇"[node]}` }, handle);
      this.listen(handle, node);
      const group = svg("g", { class: `arrow-set ${colour}` }, arrows);
      const model = svg("g", { class: `model ${colour}`, "data-node": node }, models);
      svg("circle", { r: 9 }, model);
      svg("text", { dy: "0.35em", text: node }, model);
      model.addEventListener("pointerenter", () => this.onFocus(node));
      model.addEventListener("pointerleave", () => this.onFocus(null));
      return {
        handle,
        model,
        rings: [1, 2].map(() => svg("ellipse", { class: `ring ${colour}` }, own)),
        trails: TRAILS.map(() => svg("path", { class: `trail ${colour}` }, paths)),
        group,
        arrows: ["pull", "fix", "sum"].map((kind) => svg("path", { class: `arrow ${kind}` }, group)),
      };
    });
    this.mean = svg("path", { class: "mean", d: "M0-8 8 0 0 8-8 0Z" }, models);
    this.gapLine = svg("line", {}, gap);
    this.gapWords = svg("text", {}, gap);
    this.outside = svg("text", { class: "outside-words", x: 14, y: 22 }, models);
  }

  /** A minimiser that can be moved by pointer and by keys. @param {SVGElement} handle @param {number} node */
  listen(handle, node) {
    handle.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      handle.focus();
      this.dragging = node;
      this.dragged = this.result.problem.centres[node];
    });
    handle.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      if (this.dragging !== node) return;
      const box = this.picture.getBoundingClientRect();
      const x = Math.min(Math.max(event.clientX - box.left, 12), this.width - 12);
      const y = Math.min(Math.max(event.clientY - box.top, 12), this.height - 12);
      this.dragged = [(x - this.origin[0]) / this.scale, (this.origin[1] - y) / this.scale];
      this.onDrag(node, this.dragged);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      handle.addEventListener(end, () => {
        if (this.dragging !== node) return;
        this.dragging = null;
        this.onDrag(node, this.dragged);
      });
    }
    handle.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const [x, y] = this.result.problem.centres[node];
      this.onDrag(node, [x + move[0], y + move[1]]);
    });
    handle.addEventListener("focus", () => this.onFocus(node));
    handle.addEventListener("blur", () => this.onFocus(null));
    handle.addEventListener("pointerenter", () => this.onFocus(node));
    handle.addEventListener("pointerleave", () => this.onFocus(null));
  }

  /** The contours and the minimiser of one node. @param {number} node @param {Point} centre */
  own(node, centre) {
    const { handle, rings } = this.nodes[node];
    const [x, y] = this.pixel(centre);
    set(handle, { transform: `translate(${x} ${y})` });
    const small = 0.09 * Math.min(this.width, this.height);
    // The same two levels for all nodes: a steep f_i has small contours.
    rings.forEach((ring, index) => set(ring, ellipse(this.result.problem.A[node], [x, y], small * (index + 1))));
  }

  /** The contours of f, the mean over the members, and its minimum. @param {boolean[]} alive */
  hills(alive) {
    const key = alive.join();
    if (key === this.members) return;
    this.members = key;
    const { A, optimum, survivors_optimum: survivors } = this.result.problem;
    const all = alive.every(Boolean);
    const goal = all || !survivors ? optimum : survivors;
    const taking = A.filter((_, node) => alive[node]);
    const mean = [0, 1, 2].map((entry) => taking.reduce((sum, one) => sum + one[entry], 0) / taking.length);
    const far = 0.8 * Math.hypot(this.width, this.height) * Math.sqrt((mean[0] + mean[2]) / 2);
    const [x, y] = this.pixel(goal);
    this.layers.hills.replaceChildren();
    for (let level = LEVELS; level > 0; level -= 1) {
      const shape = ellipse(/** @type {any} */ (mean), [x, y], far * (level / LEVELS) ** 1.6);
      svg("ellipse", { class: "hill", ...shape }, this.layers.hills);
    }
    set(this.goal, { transform: `translate(${x} ${y})` });
    set(this.goalName, { x: x + 16, y: y - 12 });
    const [oldX, oldY] = this.pixel(optimum);
    set(this.formerGoal, { transform: `translate(${oldX} ${oldY})`, visibility: all ? "hidden" : "visible" });
    this.nodes.forEach(({ handle, model, rings, group }, node) => {
      for (const one of [handle, model, group, ...rings]) one.classList.toggle("dead", !alive[node]);
    });
  }

  /** Pixels per unit of gradient: the largest at the minimum, and in the first step, are of a readable length. */
  scaleOfArrows() {
    const { A, centres, optimum } = this.result.problem;
    const size = Math.min(this.width, this.height);
    const sizes = centres.map((centre, node) => Math.hypot(...gradient(A[node], centre, optimum)));
    const first = (this.result.runs[0].gradients?.[0]?.[0] ?? []).map((one) => Math.hypot(...one));
    return Math.min((0.22 * size) / Math.max(...sizes, 1e-6), (0.5 * size) / Math.max(...first, 1e-6));
  }

  /** Everything that moves. @param {number} position */
  draw(position) {
    this.position = position;
    if (!this.nodes || !this.width || !this.timeline.rounds) return;
    const moment = this.timeline.moment(position);
    const run = this.result.runs[0];
    const alive = run.alive?.[moment.round] ?? this.nodes.map(() => true);
    this.hills(alive);
    const models = this.timeline.models(position);
    const { ticks } = this.timeline;
    models.forEach((model, node) => {
      const { model: dot, trails } = this.nodes[node];
      const [x, y] = this.pixel(model);
      set(dot, { transform: `translate(${x} ${y})` });
      trails.forEach((trail, index) =>
        set(trail, { d: this.trail(node, position, TRAILS[index] * TRAIL_ROUNDS * ticks, [x, y]) }),
      );
    });
    const mean = this.pixel(meanOf(models, alive));
    set(this.mean, { transform: `translate(${mean[0]} ${mean[1]})` });
    const rounds = [...Array(moment.round + 1).keys()];
    const passed = rounds.map((round) => this.pixel(meanOf(run.frames[round][0], run.alive?.[round] ?? [])));
    set(this.meanPath, { d: path([...passed, mean]) });
    this.gap(moment.round, alive);
    const outside = ([x, y]) => x < 0 || y < 0 || x > this.width || y > this.height;
    const out = models.filter((model) => outside(this.pixel(model))).length;
    set(this.outside, { text: out ? `outside the picture: ${out} of ${models.length} models` : "" });
    this.arrows(moment, models, alive);
  }

  /** Where the mean has stopped at another point than the goal. @param {number} round @param {boolean[]} alive */
  gap(round, alive) {
    const { frames } = this.timeline;
    const all = this.result.problem;
    const goal = (!alive.every(Boolean) && all.survivors_optimum) || all.optimum;
    const mean = meanOf(frames[round][0], alive);
    const before = meanOf(frames[Math.max(0, round - 3)][0], alive);
    const off = Math.hypot(mean[0] - goal[0], mean[1] - goal[1]);
    const moved = Math.hypot(mean[0] - before[0], mean[1] - before[1]);
    const stopped = round > 3 && moved < 0.05 * off && off * this.scale > 18;
    set(this.layers.gap, { visibility: stopped ? "visible" : "hidden" });
    if (!stopped) return;
    const [from, to] = [this.pixel(mean), this.pixel(goal)];
    set(this.gapLine, { x1: from[0], y1: from[1], x2: to[0], y2: to[1] });
    const x = Math.min(Math.max((from[0] + to[0]) / 2, 80), this.width - 80);
    set(this.gapWords, { x, y: Math.max(from[1], to[1]) + 28, text: `stops ${brief(off)} from x*` });
  }

  /** The last ticks of a node's path, up to where it is. */
  trail(node, position, length, now) {
    const { frames, ticks, tau } = this.timeline;
    const points = [];
    for (let tick = Math.max(0, Math.ceil(position - length)); tick < position; tick += 1) {
      const round = Math.floor(tick / ticks);
      const point = frames[round]?.[Math.min(tick - round * ticks, tau)]?.[node];
      if (point) points.push(this.pixel(point));
    }
    return path([...points, now]);
  }

  /** −g, −c and −(g + c) of each node. @param {Moment} moment @param {Point[]} models @param {boolean[]} alive */
  arrows({ round, step, exchange, part }, models, alive) {
    const { gradients, corrections } = this.result.runs[0];
    const plain = !this.result.runs[0].variables.some((name) => name !== "x" && name !== "m");
    set(this.layers.arrows, { class: plain ? "arrows plain" : "arrows" });
    models.forEach((model, node) => {
      const [pull, fix, sum] = this.nodes[node].arrows;
      if (!alive[node]) return [pull, fix, sum].forEach((one) => set(one, { d: "" }));
      const c = corrections?.[round]?.[node] ?? [0, 0];
      const next = corrections?.[round + 1]?.[node] ?? c;
      const now = exchange ? between(c, next, part) : c;
      const g = gradients?.[round]?.[Math.min(step, this.timeline.tau - 1)]?.[node] ?? [0, 0];
      const from = this.pixel(model);
      set(pull, { d: exchange ? "" : arrow(from, g, this.arrowScale) });
      set(fix, { d: arrow(from, now, this.arrowScale) });
      set(sum, { d: exchange || plain ? "" : arrow(from, [g[0] + now[0], g[1] + now[1]], this.arrowScale) });
    });
  }

  /** Makes one node's parts stand out. @param {number | null} node */
  point(node) {
    this.picture.classList.toggle("focused", node !== null);
    this.nodes?.forEach((parts, index) => {
      const marked = [parts.handle, parts.model, parts.group, ...parts.rings, ...parts.trails];
      for (const one of marked) one.classList.toggle("chosen", index === node);
    });
  }
}
