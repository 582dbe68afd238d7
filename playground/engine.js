/** The worker that runs the library: one question at a time, always the newest settings next. */

/** @typedef {import("./types.js").Settings} Settings */

export class Engine {
  /**
   * @param {{onReady: () => void, onResult: (result: import("./types.js").Result, settings: Settings) => void,
   *   onError: (sentence: string) => void, onFailure: () => void, onBusy: (busy: boolean) => void}} actions
   */
  constructor(actions) {
    Object.assign(this, { actions, ready: false, failed: false });
    this.count = 0;
    this.waiting = /** @type {Settings | null} */ (null);
    this.running = /** @type {{id: number, settings: Settings, stale?: boolean} | null} */ (null);
    this.exports = new Map();
  }

  /** Starts Python, if this site has it. @param {boolean} live */
  start(live) {
    this.failed = !live;
    if (!live) return;
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.addEventListener("message", (event) => this.receive(event.data));
    this.worker.addEventListener("error", (event) => {
      event.preventDefault();
      this.fail();
    });
  }

  /** Computes these settings, unless newer ones come first. @param {Settings} settings */
  compute(settings) {
    this.waiting = settings;
    this.next();
  }

  /** Leaves out what was asked for and has no answer yet. */
  forget() {
    this.waiting = null;
    if (this.running) this.running.stale = true;
  }

  /** @param {"toml" | "python"} format @param {Settings} settings @returns {Promise<string>} */
  text(format, settings) {
    if (this.failed) return Promise.reject(new Error("Python could not be loaded: only the link can be copied."));
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.exports.set(id, { resolve, reject });
      this.worker.postMessage({ id, export: format, settings });
    });
  }

  next() {
    if (!this.waiting || this.running || !this.ready || this.failed) return;
    this.running = { id: ++this.count, settings: this.waiting };
    this.waiting = null;
    this.actions.onBusy(true);
    this.worker.postMessage(this.running);
  }

  /** @param {any} message */
  receive(message) {
    if (message.ready) {
      this.ready = true;
      this.actions.onReady();
      this.next();
      return;
    }
    const asked = this.exports.get(message.id);
    if (asked) {
      this.exports.delete(message.id);
      if (message.error) asked.reject(new Error(message.error));
      else asked.resolve(message.text);
      return;
    }
    if (message.error && message.id === undefined) return this.fail();
    if (message.id !== this.running?.id) return;
    const { settings, stale } = this.running;
    this.running = null;
    this.actions.onBusy(this.waiting !== null);
    if (stale) return this.next();
    if (message.error) this.actions.onError(message.error);
    else this.actions.onResult(message.result, settings);
    this.next();
  }

  fail() {
    if (this.failed) return;
    this.failed = true;
    for (const { reject } of this.exports.values()) reject(new Error("Python has stopped: load the page again."));
    this.actions.onBusy(false);
    this.actions.onFailure();
  }
}
