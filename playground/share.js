/** What the reader takes away: a link, Python code, a spec file. */

import { byId, html } from "./svg.js";

/** @typedef {import("./types.js").Settings} Settings */

/**
 * @param {() => Settings} settings @param {() => string} link @param {import("./engine.js").Engine} engine
 * @param {(text: string, bad?: boolean) => void} notice
 */
export function listenToSharing(settings, link, engine, notice) {
  const menu = byId("share");
  const on = (/** @type {string} */ id, /** @type {() => Promise<string>} */ act) =>
    byId(id).addEventListener("click", async () => {
      menu.open = false;
      menu.firstElementChild.focus();
      try {
        notice(await act());
      } catch (error) {
        notice(/** @type {Error} */ (error).message, true);
      }
    });
  on("copy-link", async () => {
    await copy(link());
    return "The link is in the clipboard. It carries all settings.";
  });
  on("copy-python", async () => {
    await copy(await engine.text("python", settings()));
    return "The Python code is in the clipboard. It gives the numbers of this page.";
  });
  on("download-toml", async () => {
    const file = new Blob([await engine.text("toml", settings())], { type: "application/toml" });
    const anchor = html("a", { href: URL.createObjectURL(file), download: "spec.toml" });
    anchor.click();
    URL.revokeObjectURL(/** @type {HTMLAnchorElement} */ (anchor).href);
    return "spec.toml is saved. Run it with: stgt run spec.toml";
  });
  document.addEventListener("click", (event) => {
    if (menu.open && !menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.firstElementChild.focus();
  });
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    throw new Error("The browser does not allow this page to write to the clipboard.");
  }
}
