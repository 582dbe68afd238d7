/** The eigenvalues of a round in the complex plane, what their radius means, and the gauge ‖Σ c_i‖. */

import { brief, byId, onSize, set, svg } from "./svg.js";

/** @typedef {import("./types.js").Run} Run */

export class Spectrum {
  /** @param {SVGSVGElement} picture @param {HTMLElement} words */
  constructor(picture, words) {
    Object.assign(this, { picture, words });
    this.description = svg("desc", {}, picture);
    this.layer = svg("g", {}, picture);
    onSize(picture, (width, height) => {
      Object.assign(this, { width, height });
      set(picture, { viewBox: `0 0 ${width} ${height}` });
      if (this.run) this.show(this.run);
    });
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    const words = inWords(run);
    set(this.words, { text: words });
    this.words.classList.toggle("bad", (run.radius ?? 0) > 1);
    const count = run.eigenvalues?.length ?? 0;
    set(this.description, { text: `${words} ${count} eigenvalues of ${run.map?.what ?? "the map"}.` });
    if (!this.width) return;
    this.layer.replaceChildren();
    const values = run.eigenvalues ?? [];
    const far = Math.max(1, ...values.map(([re, im]) => Math.hypot(re, im)));
    const unit = (Math.min(this.width, this.height) / 2 - 14) / Math.min(far, 3);
    const [x, y] = [this.width / 2, this.height / 2];
    svg("circle", { class: "unit", cx: x, cy: y, r: unit }, this.layer);
    const arm = 1.08 * unit;
    svg("path", { class: "axes", d: `M${x - arm} ${y}h${2 * arm}M${x} ${y - arm}v${2 * arm}` }, this.layer);
    svg("text", { class: "label", x: x + unit - 3, y: y - 5, "text-anchor": "end", text: "1" }, this.layer);
    for (const [re, im] of values) {
      const outside = Math.hypot(re, im) > 1 + 1e-9;
      const [at, up] = [x + unit * re, y - unit * im];
      const triangle = `M${at} ${up - 6}l6 11h-12Z`;
      if (outside) svg("path", { class: "value outside", d: triangle }, this.layer);
      else svg("circle", { class: "value", cx: at, cy: up, r: 4 }, this.layer);
    }
  }
}

/** What the spectral radius says. @param {Run} run */
export function inWords(run) {
  const { radius, label } = run;
  if (radius === null || radius === undefined) return run.why ?? "This run has no single map.";
  if (radius > 1 + 1e-9) {
    return `${label} leaves the circle: each round multiplies the error by ${digits(radius)}, so it diverges.`;
  }
  if (radius > 1 - 1e-9) return `${label} touches the circle: some error does not shrink.`;
  return `${label} stays inside: each round multiplies the distance to its end point by ${digits(radius)}.`;
}

/** Enough digits to see on which side of 1 it is. @param {number} radius */
function digits(radius) {
  const decimals = Math.min(8, Math.max(2, Math.ceil(-Math.log10(Math.abs(1 - radius))) + 1));
  return radius.toFixed(decimals);
}

/** The bar of ‖Σ c_i‖ and its words. @param {Run} run @param {boolean} tracks @param {number} measured */
export function drawGauge(run, tracks, measured) {
  const bar = byId("gauge-bar");
  const value = run.sum_c[Math.min(measured, run.sum_c.length - 1)] ?? 0;
  const full = Math.max(1, ...run.sum_c.map((one) => 1.25 * one));
  const zero = value < 1e-9;
  set(bar, { style: `width: ${zero ? 0 : Math.max(2, (100 * value) / full)}%` });
  set(byId("gauge"), { "aria-valuenow": value, "aria-valuemax": full });
  set(byId("gauge-value"), { text: tracks ? brief(zero ? 0 : value) : "–" });
  const words = !tracks
    ? `${run.label} has no corrections.`
    : zero
      ? "The corrections cancel: their sum is 0."
      : "The corrections do not cancel: the models go to a wrong point.";
  set(byId("gauge-words"), { text: words });
  byId("gauge-words").classList.toggle("bad", tracks && !zero);
}
