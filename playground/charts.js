/** The error of all chosen methods, per round or per byte, on a logarithmic axis. */

import { brief, inBytes, onSize, powerOfTen, set, svg } from "./svg.js";

/** @typedef {import("./types.js").Run} Run */

const LEAST = 1e-16; // errors below this are drawn here: they are rounding
const MOST = 1e4;
const MARGIN = { left: 44, right: 14, top: 10, bottom: 34 };

export class Chart {
  /** @param {SVGSVGElement} picture @param {"round" | "byte"} axis */
  constructor(picture, axis) {
    Object.assign(this, { picture, axis });
    this.description = svg("desc", {}, picture);
    this.layers = Object.fromEntries(
      ["grid", "curves", "marks"].map((name) => [name, svg("g", { class: name }, picture)]),
    );
    onSize(picture, (width, height) => {
      Object.assign(this, { width, height });
      set(picture, { viewBox: `0 0 ${width} ${height}` });
      if (this.runs) this.show(this.runs, this.rounds, this.events);
    });
  }

  /**
   * @param {Run[]} runs in the reader's order, which gives each its colour and dash
   * @param {number} rounds @param {number[]} events the rounds in which something happens
   */
  show(runs, rounds, events) {
    Object.assign(this, { runs, rounds, events });
    if (!this.width) return;
    const errors = runs.flatMap((run) => run.error).filter((value) => value > 0);
    this.top = Math.min(Math.ceil(Math.log10(Math.max(...errors, 1))), Math.log10(MOST));
    const least = Math.floor(Math.log10(Math.max(Math.min(...errors, 0.1), LEAST)));
    this.bottom = Math.min(least, this.top - 2);
    this.most = this.axis === "round" ? rounds : Math.max(...runs.map((run) => run.bytes.at(-1) ?? 0), 1);
    this.grid();
    this.layers.curves.replaceChildren();
    runs.forEach((run, index) => {
      const points = run.error.map((error, round) => `${this.x(run, round)} ${this.y(error)}`);
      svg("path", { class: `curve slot-${index}`, d: `M${points.join("L")}` }, this.layers.curves);
    });
    this.layers.marks.replaceChildren();
    this.line = svg("path", { class: "playhead" }, this.layers.marks);
    this.dots = runs.map((_, index) => svg("circle", { r: 4.5, class: `dot slot-${index}` }, this.layers.marks));
    const ends = runs.map((run) => `${run.label} ends at ${brief(run.error.at(-1) ?? 0)}`).join("; ");
    set(this.description, { text: `Squared distance of the mean model from x*, logarithmic. ${ends}.` });
    this.draw(this.measured ?? 0);
  }

  /** Axes, with at most six powers of ten. */
  grid() {
    const { grid } = this.layers;
    grid.replaceChildren();
    const right = this.width - MARGIN.right;
    const low = this.height - MARGIN.bottom;
    const every = Math.max(1, Math.ceil((this.top - this.bottom) / 6));
    for (let power = this.top; power >= this.bottom; power -= every) {
      const y = this.y(10 ** power);
      svg("path", { d: `M${MARGIN.left} ${y}H${right}` }, grid);
      svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end", text: powerOfTen(power) }, grid);
    }
    const step = niceStep(this.most / 4);
    for (let value = 0; value <= this.most; value += step) {
      const x = this.across(value);
      const text = this.axis === "round" ? brief(value) : inBytes(value);
      svg("text", { x, y: low + 15, "text-anchor": value ? "middle" : "start", text }, grid);
    }
    for (const round of this.axis === "round" ? this.events : []) {
      svg("path", { class: "event", d: `M${this.across(round)} ${MARGIN.top}V${low}` }, grid);
    }
    const text = this.axis === "round" ? "rounds" : "bytes that a node has sent";
    const place = { x: (MARGIN.left + right) / 2, y: this.height - 3, "text-anchor": "middle" };
    svg("text", { class: "axis", ...place, text }, grid);
  }

  /** @param {Run} run @param {number} round */
  x(run, round) {
    return this.across(this.axis === "round" ? round : run.bytes[round]);
  }

  /** @param {number} value */
  across(value) {
    return rounded(MARGIN.left + (value / this.most) * (this.width - MARGIN.left - MARGIN.right));
  }

  /** @param {number} error */
  y(error) {
    const power = Math.min(Math.max(Math.log10(Math.max(error, LEAST)), this.bottom), this.top);
    const part = (this.top - power) / (this.top - this.bottom);
    return rounded(MARGIN.top + part * (this.height - MARGIN.top - MARGIN.bottom));
  }

  /** @param {number} measured how many rounds have ended */
  draw(measured) {
    this.measured = measured;
    if (!this.line) return;
    this.runs.forEach((run, index) => {
      const at = Math.min(measured, run.error.length - 1);
      set(this.dots[index], at < 0 ? { r: 0 } : { cx: this.x(run, at), cy: this.y(run.error[at]) });
    });
    const at = this.axis === "round" ? this.across(measured) : null;
    set(this.line, { d: at === null ? "" : `M${at} ${MARGIN.top}V${this.height - MARGIN.bottom}` });
  }
}

/** 1, 2 or 5 times a power of ten, at least `value`. @param {number} value */
function niceStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((factor) => factor * power >= value) ?? 10);
}

/** @param {number} value */
function rounded(value) {
  return Math.round(value * 10) / 10;
}
