/** What can be set, its limits, and how a link carries it. The page keeps its methods in the reader's order. */

/** @typedef {import("./types.js").Settings} Settings */
/** @typedef {import("./types.js").Method} Method */

/** The methods by name: `tracks` says that they have corrections, `beta` that they have a β, with its start. */
export const METHODS = {
  FedAvg: { label: "FedAvg", tracks: false },
  DPSGD: { label: "D-PSGD", tracks: false },
  Scaffold: { label: "Scaffold", tracks: true },
  STGT: { label: "ST-GT", tracks: true, beta: 1 },
  STGT_adjoint: { label: "ST-GT adjoint", tracks: true, beta: 1 },
  LED: { label: "LED", tracks: true, beta: 0.25 },
  DiLoCo: { label: "DiLoCo", tracks: false, momentum: 0.9 },
};

/** The buttons above the graph. */
export const PRESETS = {
  ring: { label: "ring", graph: { kind: "ring" }, hint: "Each node exchanges messages with two neighbours." },
  exponential: { label: "exponential", graph: { kind: "exponential" }, hint: "Node i receives from i + 1, 2, 4, …" },
  one_peer: { label: "one-peer", graph: { kind: "one_peer" }, hint: "One neighbour per round, another in each round." },
  server: { label: "server", graph: { kind: "server" }, hint: "Each node sends to a server, which returns the mean." },
  directed: { label: "directed", graph: { kind: "directed" }, hint: "A ring in one direction: i receives from i + 1." },
  lossy: { label: "lossy", graph: { kind: "ring", lost: 0.4 }, hint: "A ring whose links fail at random." },
};

export const LIMITS = {
  n: [3, 8], rounds: [10, 200], spread: [0, 2], noise: [0, 1], lost: [0, 0.9],
  gamma: [0.001, 2], tau: [1, 20], beta: [0.01, 1], momentum: [0, 0.95],
};
const SEEDS = [0, 2 ** 31 - 1];
const FAR = 20; // the largest coordinate of a minimiser

/** Can links of this graph fail? @param {string} kind */
export const canLose = (kind) => kind === "ring" || kind === "edges";

/** A graph with all its fields. @param {object} given @returns {import("./types.js").Graph} */
export function graphOf(given) {
  return { kind: "ring", edges: [], sampled: null, lost: 0, ...given };
}

/** A method with the starts of its own numbers. @param {string} name @param {Method} like @returns {Method} */
export function methodOf(name, like) {
  const { beta = 1, momentum = 0 } = METHODS[name];
  return { name, gamma: like.gamma, tau: like.tau, beta, momentum };
}

/** The settings as the engine takes them: the drawn method first. @param {Settings} settings @param {number} drawn */
export function forEngine(settings, drawn) {
  const others = settings.methods.filter((_, index) => index !== drawn);
  return { ...settings, methods: [settings.methods[drawn], ...others] };
}

/** Which method of the page is which run of the result. @param {number} count @param {number} drawn */
export function runOrder(count, drawn) {
  return [...Array(count).keys()].map((index) => (index === drawn ? 0 : index < drawn ? index + 1 : index));
}

/** The fragment of a link. @param {Settings} settings @param {number} drawn */
export function toHash(settings, drawn) {
  const { n, graph, problem, methods, rounds, seed, events } = settings;
  const parts = {
    v: 1,
    n,
    g: graph.kind,
    ...(graph.kind === "edges" && { e: graph.edges.map((edge) => edge.join("-")).join(".") }),
    ...(graph.sampled && { s: graph.sampled }),
    ...(graph.lost && { l: graph.lost }),
    p: [problem.spread, problem.seed, problem.noise].join(","),
    ...(problem.centres && { c: problem.centres.map((centre) => centre.join(",")).join(";") }),
    m: methods.map((one) => [one.name, one.gamma, one.tau, one.beta, one.momentum].join(",")).join(";"),
    ...(drawn && { d: drawn }),
    r: rounds,
    ...(seed && { q: seed }),
    ...(events.length && { k: events.map(writeChange).join(".") }),
  };
  return `#${Object.entries(parts).map(([name, value]) => `${name}=${value}`).join("&")}`;
}

/** What a link's fragment holds; throws an Error that says what is wrong. @param {string} hash */
export function fromHash(hash) {
  const pairs = hash.replace(/^#/, "").split("&").map((part) => part.split("="));
  const parts = new Map(/** @type {[string, string][]} */ (pairs));
  if (parts.get("v") !== "1") throw new Error("it is not of this version");
  for (const name of parts.keys()) if (!"v n g e s l p c m d r q k".split(" ").includes(name)) fail(name);
  const list = (name, between) => (parts.get(name) ?? "").split(between).filter(Boolean);
  const n = whole(parts.get("n"), LIMITS.n, "the number of nodes");
  const node = (text) => whole(text, [0, n - 1], "a node");
  const [spread, dataSeed, noise] = list("p", ",");
  const rounds = whole(parts.get("r"), LIMITS.rounds, "the number of rounds");
  const methods = list("m", ";").map((text) => readMethod(text.split(",")));
  if (methods.length < 1 || methods.length > 3) fail("the number of methods");
  const kind = parts.get("g") ?? "";
  if (!["ring", "exponential", "one_peer", "directed", "edges", "server"].includes(kind)) fail("the graph");
  const lost = real(parts.get("l") ?? "0", LIMITS.lost, "the link loss");
  if (lost && !canLose(kind)) fail("the link loss");
  const centres = parts.has("c") ? list("c", ";").map(readPoint) : null;
  if (centres && centres.length !== n) fail("the minimisers");
  const settings = {
    n,
    graph: {
      kind,
      edges: list("e", ".").map((text) => readEdge(text.split("-").map(node))),
      sampled: parts.has("s") ? whole(parts.get("s"), [1, n], "the number of sampled nodes") : null,
      lost,
    },
    problem: {
      spread: real(spread, LIMITS.spread, "the spread of the data"),
      seed: whole(dataSeed, SEEDS, "the seed of the data"),
      noise: real(noise, LIMITS.noise, "the noise"),
      centres,
    },
    methods,
    rounds,
    seed: whole(parts.get("q") ?? "0", SEEDS, "the seed"),
    events: list("k", ".").map((text) => readChange(text, rounds, node)),
  };
  return { settings, drawn: whole(parts.get("d") ?? "0", [0, methods.length - 1], "the drawn method") };
}

/** @param {string} what @returns {never} */
function fail(what) {
  throw new Error(`${what} is not valid in it`);
}

/** @param {string | undefined} text @param {number[]} limits @param {string} what */
function real(text, [least, most], what) {
  const value = Number(text);
  if (!text || !(value >= least && value <= most)) fail(what);
  return value;
}

/** @param {string | undefined} text @param {number[]} limits @param {string} what */
function whole(text, limits, what) {
  const value = real(text, limits, what);
  return Number.isInteger(value) ? value : fail(what);
}

/** @param {string[]} parts @returns {Method} */
function readMethod([name, gamma, tau, beta, momentum]) {
  if (!Object.hasOwn(METHODS, name)) fail("a method");
  return {
    name,
    gamma: real(gamma, LIMITS.gamma, "γ"),
    tau: whole(tau, LIMITS.tau, "τ"),
    beta: real(beta, LIMITS.beta, "β"),
    momentum: real(momentum, LIMITS.momentum, "the outer momentum"),
  };
}

/** @param {string} text @returns {import("./types.js").Point} */
function readPoint(text) {
  const [x, y] = text.split(",").map((part) => real(part, [-FAR, FAR], "a minimiser"));
  return [x, y ?? fail("a minimiser")];
}

/** @param {number[]} nodes @returns {[number, number]} */
function readEdge(nodes) {
  return nodes.length === 2 && nodes[0] !== nodes[1] ? [nodes[0], nodes[1]] : fail("an edge");
}

/** @param {import("./types.js").Change} change */
function writeChange({ round, kind, node }) {
  return kind === "kill" ? `${round}k${node}` : `${round}r`;
}

/** @param {string} text @param {number} rounds @param {(text: string) => number} node */
function readChange(text, rounds, node) {
  const found = /^(\d+)(?:k(\d+)|r)$/.exec(text);
  if (!found) return fail("an event");
  const round = whole(found[1], [0, rounds - 1], "an event's round");
  return found[2] === undefined
    ? { round, kind: /** @type {"repair"} */ ("repair") }
    : { round, kind: /** @type {"kill"} */ ("kill"), node: node(found[2]) };
}
