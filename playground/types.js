/**
 * The shapes of what the page and its worker exchange; the engine's are in engine/.
 *
 * @typedef {[number, number]} Point
 * @typedef {{name: string, gamma: number, tau: number, beta: number, momentum: number}} Method
 * @typedef {{kind: string, edges: [number, number][], sampled: number | null, lost: number}} Graph
 * @typedef {{spread: number, seed: number, noise: number, centres: Point[] | null}} Problem
 * @typedef {{round: number, kind: "kill" | "repair", node?: number}} Change
 * @typedef {{n: number, graph: Graph, problem: Problem, methods: Method[], rounds: number, seed: number,
 *   events: Change[]}} Settings
 *
 * @typedef {{part: "correction" | "message" | "merge" | "step", code: string}} SourcePart
 * @typedef {Object} Run
 * @property {string} label
 * @property {string} on the name of the topology on which it runs
 * @property {number[][][]} [phases] the matrices of that topology, if they are not drawn at random
 * @property {string[]} variables
 * @property {Point[][][]} [frames] [round][step][node]; only of the first run, as the next three
 * @property {Point[][][]} [gradients]
 * @property {Point[][]} [corrections] [round][node]
 * @property {(number | number[][])[]} [weights]
 * @property {boolean[][]} [alive] [round][node]
 * @property {number[]} error
 * @property {number[]} bytes
 * @property {number[]} sum_c
 * @property {number | null} diverged_at
 * @property {{what: string} | null} map
 * @property {string} [why] why there is no map
 * @property {number | null} radius
 * @property {[number, number][] | null} eigenvalues
 * @property {{file: string, name: string, lines: SourcePart[]}} source
 *
 * @typedef {{A: [number, number, number][], centres: Point[], optimum: Point, survivors_optimum: Point | null,
 *   x0: Point}} Landscape
 * @typedef {{problem: Landscape, graph: {phases: number[][][], random: boolean, note: string}, runs: Run[]}} Result
 * @typedef {{round: number, exchange: boolean, step: number, part: number}} Moment where the playhead is: `part` of the
 *   way through a local step, or through the exchange
 */
export {};
