// Measurements over rounds, gradients, megabytes or modelled time.
const AXES = {
  rounds: { title: "communication round", tickformat: ",d" },
  gradients: { title: "gradients computed by all nodes", exponentformat: "SI" },
  megabytes: { title: "MB sent by all nodes and the server" },
  time: { title: "modelled time, seconds", separatethousands: true },
};

function placesOf(curve, over, network) {
  if (over === "rounds") return curve.communications || curve.rounds;
  if (over === "gradients") return curve.gradients;
  if (over === "megabytes") return curve.floats.map((floats) => (floats * curve.bytes) / 1e6);
  return curve.rounds.map((round, k) => modelled(shareAt(curve, k), network));
}

// The band of the interval and the line of the mean.
function linesOf(curve, style, { over, metric, log, floor, network, opacity }) {
  const [mean, low, high] = curve.values[metric] || [[], null, null];
  if (!mean.length) return [];
  const places = placesOf(curve, over, network);
  const name = literal(curve.name);
  const paint = paintOf(style);
  const seen = mean.map((value) => value !== null && (!log || value > 0));
  const told = mean.map((value, k) => [
    value === null ? "" : low ? between(value, low[k], high[k]) : short(value),
    (curve.communications || curve.rounds)[k].toLocaleString("en", { maximumFractionDigits: 1 }),
    short(curve.gradients[k]),
    short((curve.floats[k] * curve.bytes) / 1e6),
    seconds(modelled(shareAt(curve, k), network)),
  ]);
  const line = {
    type: "scatter",
    mode: seen.filter(Boolean).length > 1 ? "lines" : "markers",
    name,
    x: places,
    y: mean.map((value, k) => (seen[k] ? value : null)),
    line: { color: paint, width: places.length > 300 ? 1.6 : 2.2, dash: DASHES[dashOf(style)] },
    marker: { color: paint, size: 8 },
    customdata: told,
    hovertemplate:
      `<b>${name}</b><br>${literal(metric)} %{customdata[0]}<br>round %{customdata[1]}, %{customdata[2]} gradients` +
      "<br>%{customdata[3]} MB, %{customdata[4]} modelled<extra></extra>",
  };
  if (!low) return [line];
  const at = seen.map((one, k) => k).filter((k) => seen[k] && low[k] !== null);
  const ends = at.map((k) => (log && low[k] <= 0 ? floor : low[k]));
  const along = at.map((k) => places[k]);
  const band = {
    type: "scatter",
    mode: "lines",
    name,
    x: [...along, ...along.slice().reverse()],
    y: [...at.map((k) => high[k]), ...ends.reverse()],
    fill: "toself",
    fillcolor: transparent(paint, opacity),
    line: { width: 0 },
    hoverinfo: "skip",
  };
  return [band, line];
}

// The range of the y axis if a curve leaves it, and the places of its labels.
function frameOf(curves, metric, log) {
  const drawn = curves
    .filter((one) => one.values[metric])
    .map((one) => one.values[metric][0].filter((value) => value !== null && (!log || value > 0)))
    .filter((values) => values.length);
  if (!drawn.length) return {};
  const least = Math.min(...drawn.map((values) => Math.min(...values)));
  const most = Math.max(...drawn.map((values) => Math.max(...values)));
  const top = Math.max(...drawn.map((values) => Math.abs(values[0]))) * (log ? BEYOND : 3);
  const ticks = log ? labelled(least, Math.min(most, top)) : {};
  if (!(most > top)) return ticks;
  return { ...ticks, range: log ? [Math.log10(least) - 0.2, Math.log10(top)] : [Math.min(0, least), top] };
}

// The axis of the library's errors is logarithmic, as are positive values over two decades.
function isLogarithmic(curves, metric) {
  const values = curves.flatMap((curve) => (curve.values[metric.name] || [[]])[0]).filter((one) => one !== null);
  const positive = values.filter((one) => one > 0);
  if (!positive.length || values.some((one) => one < 0)) return false;
  const [least, most] = [Math.min, Math.max].map((of) => positive.reduce((a, b) => of(a, b)));
  return metric.error || most > 100 * least;
}

function chart(box, curves, metrics, network) {
  const field = (name) => box.querySelector(`[name="${name}"]`);
  const plot = box.querySelector(".plot");
  const shown = curves.map(() => true);
  const chosen = () => metrics.find((one) => one.name === field("metric").value);

  function draw() {
    const { name, meaning } = chosen();
    const over = field("over").value;
    const log = field("log").checked;
    const opacity = Math.min(0.15, 0.9 / shown.filter(Boolean).length); // many bands would hide the lines
    const drawn = curves.filter((curve, i) => shown[i]);
    const lows = drawn.flatMap((one) => (one.values[name] || []).slice(0, 2)).flatMap((row) => row || []);
    const floor = log ? floorOf(lows) : null;
    const look = { over, metric: name, log, floor, network, opacity };
    const traces = curves.flatMap((curve, i) => (shown[i] ? linesOf(curve, i, look) : []));
    const title = literal(meaning === name ? name : `${name}  ${meaning}`);
    const frame = frameOf(drawn, name, log);
    const layout = layoutOf(
      { ...AXES[over], rangemode: "tozero" },
      { title, type: log ? "log" : "linear", ...frame },
    );
    if (floor !== null) layout.annotations = [belowNote()];
    Plotly.react(plot, traces, layout, CONFIG);
  }

  curves.forEach((curve, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(swatch(i), curve.name);
    button.addEventListener("click", () => {
      shown[i] = !shown[i];
      button.setAttribute("aria-pressed", String(shown[i]));
      draw();
    });
    box.querySelector(".legend").append(button);
  });
  const settle = () => {
    field("log").checked = isLogarithmic(curves, chosen());
  };
  field("metric").addEventListener("change", () => {
    settle();
    draw();
  });
  for (const name of ["over", "log"]) field(name).addEventListener("change", draw);
  settle();
  redraws.push(draw);
  draw();
  return { field, draw };
}

// The three speeds of the modelled time. An empty or invalid field changes nothing.
function speeds({ field }, network, changed) {
  for (const [name, unit] of [["gradient", 1], ["latency", 1], ["bandwidth", 1e6]]) {
    field(name).addEventListener("input", () => {
      const value = field(name).valueAsNumber * unit;
      if (Number.isFinite(value) && (value > 0 || (value === 0 && name !== "bandwidth"))) {
        network[name] = value;
        changed();
      }
    });
  }
}
