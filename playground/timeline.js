/**
 * Positions on the timeline. A round is τ + 1 ticks: τ local steps, and an exchange. A position is a number of ticks,
 * and may be between two.
 */

/** @typedef {import("./types.js").Point} Point */
/** @typedef {import("./types.js").Moment} Moment */

export class Timeline {
  /** @param {import("./types.js").Run} run @param {number} tau */
  constructor(run, tau) {
    this.tau = tau;
    this.frames = run.frames ?? [];
    this.ticks = tau + 1;
    const whole = this.frames.filter((frame) => frame.length === tau + 1).length;
    this.rounds = whole;
    // Where the models are after the last exchange is known only if the engine says so.
    this.end = Math.max(0, this.frames.length > whole ? whole * this.ticks : whole * this.ticks - 1);
  }

  /** What happens at a position. @param {number} position @returns {Moment} */
  moment(position) {
    const at = Math.min(Math.max(position, 0), this.end);
    const tick = Math.min(Math.floor(at), Math.max(0, this.end - 1));
    const round = Math.floor(tick / this.ticks);
    const step = tick - round * this.ticks;
    return { round, step, exchange: step === this.tau, part: at - tick };
  }

  /** The models at a position. @param {number} position @returns {Point[]} */
  models(position) {
    const { round, step, exchange, part } = this.moment(position);
    const from = this.frames[round]?.[step] ?? [];
    const to = (exchange ? this.frames[round + 1]?.[0] : this.frames[round]?.[step + 1]) ?? from;
    return from.map((point, node) => between(point, to[node], exchange ? eased(part) : part));
  }

  /** The index into measurements that are made once a round: the rounds that have ended. @param {number} position */
  measured(position) {
    return Math.min(this.rounds, Math.floor((position + 1e-9) / this.ticks));
  }

  /** How many seconds a tick lasts: the first rounds are slow enough to follow. @param {Moment} moment */
  seconds({ round, exchange }) {
    const whole = Math.max(2.6 / (1 + 0.45 * round), 0.16);
    return exchange ? 0.4 * whole : (0.6 * whole) / this.tau;
  }
}

/** The mean of the points of those that take part. @param {Point[]} points @param {boolean[]} alive @returns {Point} */
export function meanOf(points, alive) {
  const taking = points.filter((_, node) => alive[node] ?? true);
  const sum = taking.reduce((total, point) => [total[0] + point[0], total[1] + point[1]], [0, 0]);
  return [sum[0] / taking.length, sum[1] / taking.length];
}

/** @param {Point} from @param {Point} to @param {number} part @returns {Point} */
export function between(from, to, part) {
  return [from[0] + part * (to[0] - from[0]), from[1] + part * (to[1] - from[1])];
}

/** @param {number} part */
function eased(part) {
  return part * part * (3 - 2 * part);
}
