/** Elements, and numbers as text. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An SVG element with its attributes; `parent` gets it.
 * @param {string} name @param {Record<string, unknown>} attributes @param {Element | null} [parent]
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  set(made, attributes);
  parent?.append(made);
  return made;
}

/**
 * An HTML element.
 * @param {string} name @param {Record<string, unknown>} attributes @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children);
  return made;
}

/**
 * Sets attributes; `text` is the content, null removes. In aria- and data- true and false are words.
 * @param {Element} node @param {Record<string, unknown>} values
 */
export function set(node, values) {
  for (const [name, value] of Object.entries(values)) {
    if (name === "text") node.textContent = String(value);
    else if (value === null || (value === false && !/^(aria|data)-/.test(name))) node.removeAttribute(name);
    else node.setAttribute(name, value === true && !/^(aria|data)-/.test(name) ? "" : String(value));
  }
}

/** The element of the page with this id. @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Calls `draw` with the width and height of an element, now and whenever they change.
 * @param {Element} node @param {(width: number, height: number) => void} draw
 */
export function onSize(node, draw) {
  new ResizeObserver(([entry]) => {
    const { width, height } = entry.contentRect;
    if (width > 0 && height > 0) draw(width, height);
  }).observe(node);
}

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 10 with an exponent. @param {number} power */
export function powerOfTen(power) {
  const digits = [...String(Math.abs(power))].map((digit) => SUPERSCRIPT[Number(digit)]).join("");
  return power === 0 ? "1" : power === 1 ? "10" : `10${power < 0 ? "⁻" : ""}${digits}`;
}

/** A number with two or three digits. @param {number} value */
export function brief(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 0.001 && size < 10000) return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
  const power = Math.floor(Math.log10(size));
  return `${(value / 10 ** power).toFixed(1)}·${powerOfTen(power)}`;
}

/** A number of bytes. @param {number} value */
export function inBytes(value) {
  if (value < 1000) return `${Math.round(value)} B`;
  return value < 1e6 ? `${brief(value / 1e3)} kB` : `${brief(value / 1e6)} MB`;
}
