// Starts the parts of the page.
root.classList.add("scripted");

for (const place of document.querySelectorAll(".swatch")) place.append(swatch(Number(place.dataset.style)));

data.studies.forEach((study, i) => {
  const box = document.getElementById(`curves-${i}`);
  if (!box) return;
  const made = chart(box, study.curves, study.metrics, study.network);
  speeds(made, study.network, () => {
    made.draw();
    for (const cell of document.querySelectorAll(`#study-${i} td.seconds`)) {
      const { steps, communications, bits } = cell.dataset;
      cell.textContent = seconds(modelled({ steps, communications, bits }, study.network));
    }
  });
  const below = document.getElementById(`grid-${i}`);
  if (below) {
    const draw = grid(below, study, () => made.field("metric").value);
    made.field("metric").addEventListener("change", draw);
  }
});

data.groups.forEach((group, g) => {
  const studies = group.map((i) => data.studies[i]);
  const best = (study) => study.curves.filter((curve) => curve.best);
  const curves = studies.flatMap((study) =>
    best(study).map((curve) => ({ ...curve, name: `${study.name}: ${curve.name}` })),
  );
  const metrics = studies.flatMap((study) => study.metrics);
  const network = { ...studies[0].network };
  const made = chart(document.getElementById(`group-${g}`), curves, metrics, network);
  speeds(made, network, made.draw);
});

for (const box of document.querySelectorAll(".rounds")) {
  const rounds = [...box.querySelectorAll(".round")];
  if (rounds.length < 2) continue;
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: rounds.length - 1, value: 0 });
  slider.setAttribute("aria-label", "Round");
  const show = () => {
    rounds.forEach((one, k) => {
      one.hidden = k !== Number(slider.value);
    });
  };
  slider.addEventListener("input", show);
  box.append(slider);
  show();
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const from = document.getElementById(button.dataset.from);
    try {
      await navigator.clipboard.writeText(from.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(from);
      button.textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2500);
  });
}

const system = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const nameTheme = () => {
  theme.textContent = isDark() ? "Light" : "Dark";
};
const settleTheme = () => {
  nameTheme();
  for (const draw of redraws) draw();
};
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  settleTheme();
});
system.addEventListener("change", settleTheme);
nameTheme();

// Paper is white.
let before;
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  root.dataset.theme = "light";
  settleTheme();
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  settleTheme();
});
