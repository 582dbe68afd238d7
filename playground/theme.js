/** Light and dark: the system's choice, until the reader makes one. */

import { byId, set } from "./svg.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export function listenToTheme() {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => set(byId("theme"), { "aria-pressed": isDark() });
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  show();
}
