// Final values over a hyper-parameter; diverged runs are in a strip above.
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "cross", "star", "hexagon"];

// The line of a method's lowest final values, its runs, and those outside the frame.
function endsOf(points, over, metric, left, floor) {
  const { style, method } = points[0];
  const paint = paintOf(style);
  const place = (one) => one.parameters[over];
  const end = (one) => one.ends[metric][0];
  const low = (one) => (floor !== null && one.ends[metric][1] <= 0 ? floor : one.ends[metric][1]);
  const known = (one) => one.ends[metric][1] !== null;
  const kept = points.filter((one) => !left(one));
  const lost = points.filter(left);
  const lowest = new Map();
  for (const one of kept) {
    if (!lowest.has(place(one)) || end(one) < lowest.get(place(one))) lowest.set(place(one), end(one));
  }
  const joined = [...lowest].sort((a, b) => a[0] - b[0]);
  const told = (one, words) => `<b>${literal(method)}</b><br>${literal(one.setting)}<br>${words}`;
  const said = (one) => `${literal(metric)} ${between(...one.ends[metric])}`;
  // Plotly draws an axis that a curve uses, even if the curve has no point.
  const strip = lost.length === 0 ? [] : [
    {
      type: "scatter",
      mode: "markers",
      yaxis: "y2",
      x: lost.map(place),
      y: lost.map(() => style % COLOURS),
      marker: { color: paint, symbol: "x", size: 8 },
      text: lost.map((one) => told(one, one.lost ? `seeds that diverged: ${one.lost}` : said(one))),
      hoverinfo: "text",
    },
  ];
  return [
    {
      type: "scatter",
      mode: "lines",
      x: joined.map((one) => one[0]),
      y: joined.map((one) => one[1]),
      line: { color: paint, width: 2, dash: DASHES[dashOf(style)] },
      hoverinfo: "skip",
    },
    {
      type: "scatter",
      mode: "markers",
      x: kept.map(place),
      y: kept.map(end),
      error_y: {
        type: "data",
        symmetric: false,
        array: kept.map((one) => (known(one) ? one.ends[metric][2] - end(one) : 0)),
        arrayminus: kept.map((one) => (known(one) ? end(one) - low(one) : 0)),
        color: paint,
        thickness: 1.2,
        width: 3,
      },
      marker: {
        color: kept.map((one) => (one.best ? paint : colour("--card"))),
        size: kept.map((one) => (one.best ? 11 : 9)),
        symbol: SYMBOLS[style % SYMBOLS.length],
        line: { color: paint, width: 2 },
        opacity: 1,
      },
      text: kept.map((one) => told(one, said(one) + (one.best ? "<br>best run" : ""))),
      hoverinfo: "text",
    },
    ...strip,
  ];
}

function grid(box, study, metric) {
  const parameter = box.querySelector('[name="parameter"]');

  function draw() {
    const over = parameter.value;
    const what = metric();
    const points = study.points.filter((one) => over in one.parameters && one.ends[what]);
    const starts = study.curves.filter((one) => one.values[what]).map((one) => Math.abs(one.values[what][0][0] || 0));
    const top = BEYOND * Math.max(...starts);
    const left = (one) => one.ends[what][0] === null || Math.abs(one.ends[what][0]) > top;
    const values = points.filter((one) => !left(one)).map((one) => one.ends[what][0]);
    const log = values.length > 0 && values.every((one) => one > 0);
    const lows = points.filter((one) => !left(one)).map((one) => one.ends[what][1]);
    const floor = log ? floorOf([...values, ...lows]) : null;
    const places = [...new Set(points.map((one) => one.parameters[over]))].sort((a, b) => a - b);
    const wide = places[0] > 0 && places.at(-1) > 4 * places[0];
    const methods = [...new Set(points.map((one) => one.method))];
    const traces = methods.flatMap((method) =>
      endsOf(points.filter((one) => one.method === method), over, what, left, floor),
    );
    const ticks = places.length <= 12 ? { tickvals: places, ticktext: places.map(short) } : {};
    const levels = log ? labelled(Math.min(...values), Math.max(...values)) : {};
    const layout = layoutOf(
      { title: literal(over), type: wide ? "log" : "linear", ...ticks },
      { title: literal(`${what} at the end`), type: log ? "log" : "linear", ...levels },
    );
    if (values.length < points.length) {
      layout.yaxis.domain = [0, 0.84];
      layout.yaxis2 = {
        domain: [0.87, 1],
        range: [COLOURS, -1],
        fixedrange: true,
        showgrid: false,
        zeroline: false,
        automargin: true,
        tickvals: [(COLOURS - 1) / 2],
        ticktext: ["diverged"],
        tickfont: { color: colour("--faint"), size: 12 },
      };
    }
    if (floor !== null) layout.annotations = [belowNote()];
    Plotly.react(box.querySelector(".plot"), traces, layout, CONFIG);
  }

  parameter.addEventListener("change", draw);
  redraws.push(draw);
  draw();
  return draw;
}
