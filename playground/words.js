/** What the page says about a moment and about a run. */

import { brief } from "./svg.js";

/** @typedef {import("./types.js").Run} Run */

/**
 * What happens at a moment.
 * @param {import("./types.js").Moment} moment @param {import("./timeline.js").Timeline} timeline @param {Run} run
 * @param {boolean} tracks
 */
export function phaseWords({ round, step, exchange }, timeline, run, tracks) {
  const when = `Round ${round + 1}`;
  if (exchange) {
    if (run.on.startsWith("server")) return `${when}, exchange: the server returns the mean of the models.`;
    return `${when}, exchange: neighbours mix what they receive.`;
  }
  const where = tracks ? "along −(g + c)" : "along −g, towards its own minimum";
  return `${when}, local step ${step + 1} of ${timeline.tau}: each node moves ${where}.`;
}

/** How far a method is. @param {Run} run @param {number} measured */
export function curveWords(run, measured) {
  if (run.diverged_at !== null && measured >= run.diverged_at) return `${run.label} diverged`;
  const error = run.error[Math.min(measured, run.error.length - 1)] ?? 0;
  return `${run.label} ${error < 1e-16 ? "below 10⁻¹⁶" : brief(error)}`;
}

/** The numbers of a round in sentences. @param {Run[]} runs @param {number} measured */
export function summaryWords(runs, measured) {
  const errors = runs.map((run) => curveWords(run, measured)).join(", ");
  const sum = runs[0].sum_c[Math.min(measured, runs[0].sum_c.length - 1)] ?? 0;
  const cancel = brief(sum < 1e-9 ? 0 : sum);
  return `After ${measured} rounds the errors are: ${errors}. The sum of the corrections is ${cancel}.`;
}
