// Shared by all pictures: numbers, names, colours and the modelled time.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const redraws = []; // functions that draw a picture again, for example after a change of the colours

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = ["", "7 3", "2 3", "7 3 2 3", "12 4", "12 4 2 4"];
const COLOURS = 7;
const BEYOND = 1000; // times the start: higher values are outside the frame of a logarithmic axis
const CONFIG = {
  responsive: true,
  displaylogo: false,
  showLink: false,
  showSendToCloud: false, // Plotly would offer to upload the numbers
  plotlyServerURL: "",
  doubleClick: "reset+autosize",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

// Plotly interprets some HTML and templates in its texts: names are escaped.
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;", "{": "&#123;", "}": "&#125;" };
const literal = (words) => String(words).replace(/[&<>$%{}]/g, (sign) => ENTITIES[sign]);

const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const paintOf = (style) => colour(`--c${style % COLOURS}`);
const dashOf = (style) => (style + Math.floor(style / COLOURS)) % DASHES.length;
const transparent = (hex, opacity) => {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${opacity})`;
};

function short(value) {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  const plain = value === 0 || (size >= 1e-3 && size < 1e6);
  const notation = plain ? "standard" : "scientific";
  return value.toLocaleString("en", { maximumSignificantDigits: 3, notation }).replace("E", "e");
}

function seconds(value) {
  if (value < 120) return `${short(value)} s`;
  if (value < 7200) return `${short(value / 60)} min`;
  return value < 172800 ? `${short(value / 3600)} h` : `${short(value / 86400)} days`;
}

// The same as the modelled time in page.py.
const modelled = (share, network) =>
  share.steps * network.gradient + share.communications * network.latency + share.bits / network.bandwidth;
const shareAt = (curve, k) => ({
  steps: curve.rounds[k] * curve.steps,
  communications: (curve.communications || curve.rounds)[k],
  bits: (curve.floats[k] * curve.bytes * 8) / curve.working,
});

function layoutOf(x, y) {
  const ink = colour("--ink");
  const faint = colour("--faint");
  const lines = colour("--grid");
  const axis = {
    gridcolor: lines,
    zeroline: false,
    linecolor: colour("--rule"),
    tickcolor: lines,
    automargin: true,
    exponentformat: "power",
    tickfont: { color: faint, size: 12 },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    margin: { l: 8, r: 12, t: 14, b: 8 },
    font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 13 },
    hoverlabel: {
      bgcolor: colour("--card"),
      bordercolor: colour("--rule"),
      font: { color: ink, size: 12 },
      align: "left",
    },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: faint, activecolor: ink },
    xaxis: { ...axis, ...x, title: { text: x.title, standoff: 8 } },
    yaxis: { ...axis, ...y, title: { text: y.title, standoff: 6 } },
  };
}

// The end of bands that reach 0 or below on a logarithmic axis: half of the least value drawn; null if no band does.
function floorOf(values) {
  const positive = values.filter((one) => one !== null && one > 0);
  if (!positive.length || !values.some((one) => one !== null && one <= 0)) return null;
  return positive.reduce((a, b) => Math.min(a, b)) / 2;
}

const belowNote = () => ({
  text: "this axis cannot show values ≤ 0: bands end at its bottom",
  xref: "paper", yref: "paper", x: 0.01, y: 0.01, xanchor: "left", yanchor: "bottom", showarrow: false,
  font: { color: colour("--faint"), size: 11 },
});

const between = (mean, low, high) =>
  short(mean) + (low === null || low === undefined ? "" : ` [${short(low)}, ${short(high)}]`);

// Labels of a logarithmic axis: at decades if there are enough of them, otherwise at 1, 2 and 5.
function labelled(least, most) {
  const decades = Math.log10(most / least);
  if (decades > 1.7) return { dtick: Math.ceil(decades / 8) };
  return decades > 0.5 ? { dtick: "D2" } : {};
}

function swatch(style) {
  const make = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const picture = make("svg", { width: 30, height: 10, "aria-hidden": "true" });
  const dashes = STROKES[dashOf(style)];
  const stroke = make("path", { d: "M1 5h28", fill: "none", "stroke-width": 2.5, "stroke-dasharray": dashes });
  stroke.style.stroke = `var(--c${style % COLOURS})`;
  picture.append(stroke);
  return picture;
}
