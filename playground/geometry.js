/** Shapes as attributes of SVG, in pixels. */

/** @typedef {import("./types.js").Point} Point */

/**
 * An ellipse on which ½ dᵀAd has the value that it has on a circle of this radius for A = I.
 * @param {[number, number, number]} A @param {Point} middle @param {number} radius
 */
export function ellipse([a, b, d], [x, y], radius) {
  const half = (a + d) / 2;
  const root = Math.hypot((a - d) / 2, b);
  const angle = (Math.atan2(b, (a - d) / 2) * 90) / Math.PI;
  const axis = (/** @type {number} */ value) => radius / Math.sqrt(Math.max(value, 1e-3));
  return { cx: x, cy: y, rx: axis(half + root), ry: axis(half - root), transform: `rotate(${-angle} ${x} ${y})` };
}

/**
 * The arrow of −v from a pixel. The picture's y axis points down.
 * @param {Point} from @param {Point} v @param {number} scale
 */
export function arrow([x, y], v, scale) {
  const [dx, dy] = [-scale * v[0], scale * v[1]];
  const length = Math.hypot(dx, dy);
  if (length < 3 || length > 4000) return "";
  const head = Math.min(9, length * 0.6);
  const [ux, uy] = [dx / length, dy / length];
  const wing = (/** @type {number} */ side) =>
    `${round1(x + dx - head * (ux + side * 0.5 * uy))} ${round1(y + dy - head * (uy - side * 0.5 * ux))}`;
  const tip = `${round1(x + dx)} ${round1(y + dy)}`;
  return `M${round1(x)} ${round1(y)}L${tip}M${wing(1)}L${tip}L${wing(-1)}`;
}

/** A(x − m). @param {[number, number, number]} A @param {Point} centre @param {Point} x @returns {Point} */
export function gradient([a, b, d], centre, x) {
  const [u, v] = [x[0] - centre[0], x[1] - centre[1]];
  return [a * u + b * v, b * u + d * v];
}

/** @param {number[]} values */
export function extent(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return [Math.floor(2 * least - 0.2) / 2, Math.ceil(2 * most + 0.2) / 2];
}

/** @param {number} value */
function round1(value) {
  return Math.round(value * 10) / 10;
}

/** @param {Point[]} points */
export function path(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${round1(x)} ${round1(y)}`).join("");
}

/** A five-pointed star. @param {number} outer @param {number} inner */
export function star(outer, inner) {
  const corners = [...Array(10).keys()].map((index) => {
    const angle = (index * Math.PI) / 5;
    const radius = index % 2 ? inner : outer;
    return `${round1(radius * Math.sin(angle))} ${round1(-radius * Math.cos(angle))}`;
  });
  return `M${corners.join("L")}Z`;
}
