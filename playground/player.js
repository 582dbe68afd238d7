/** The player: play, pause, steps, the scrubber, and the keys. */

import { byId, html, set } from "./svg.js";
import { Timeline } from "./timeline.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  /** @param {{draw: (position: number) => void, summarise: () => void}} actions */
  constructor(actions) {
    this.actions = actions;
    this.position = 0;
    this.playing = false;
    this.timeline = new Timeline(/** @type {any} */ ({ frames: [] }), 1);
    byId("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    byId("step").addEventListener("click", () => this.step(1));
    byId("back").addEventListener("click", () => this.step(-1));
    byId("round").addEventListener("click", () => this.round(1));
    byId("reset").addEventListener("click", () => this.jump(0));
    byId("scrubber").addEventListener("input", () => this.jump(Number(byId("scrubber").value), false));
    byId("scrubber").addEventListener("change", () => this.actions.summarise());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  /** A new run; the position stays in its round. @param {Timeline} timeline @param {{round: number}[]} events */
  show(timeline, events) {
    const { round, step, exchange, part } = this.timeline.moment(this.position);
    const [before, after] = [this.timeline.tau, timeline.tau];
    this.timeline = timeline;
    const within = exchange ? after + part : Math.min(after, ((step + part) * after) / before);
    this.position = Math.min(round * timeline.ticks + within, timeline.end);
    set(byId("scrubber"), { max: timeline.end });
    const marks = events.map((event) => {
      const left = (100 * event.round * timeline.ticks) / Math.max(timeline.end, 1);
      return html("i", { style: `left: ${left}%`, class: event.kind });
    });
    byId("marks").replaceChildren(...marks);
    this.draw();
  }

  play() {
    if (this.playing || !this.timeline.end) return;
    if (this.position >= this.timeline.end) this.position = 0;
    this.mark(true);
    this.last = performance.now();
    requestAnimationFrame((now) => this.frame(now));
  }

  pause() {
    if (!this.playing) return;
    this.mark(false);
    this.actions.summarise();
  }

  /** @param {boolean} playing */
  mark(playing) {
    this.playing = playing;
    byId("play").classList.toggle("playing", playing);
    set(byId("play"), { "aria-label": playing ? "Pause" : "Play" });
  }

  /** @param {number} now */
  frame(now) {
    if (!this.playing) return;
    let seconds = Math.min(0.1, (now - this.last) / 1000) * Number(byId("speed").value);
    if (calm.matches) {
      // Without motion: a round at a time.
      if ((now - this.last) * Number(byId("speed").value) >= 700) {
        this.last = now;
        const { ticks, end } = this.timeline;
        this.position = Math.min((Math.floor(this.position / ticks) + 1) * ticks, end);
      }
      seconds = 0;
    } else this.last = now;
    while (seconds > 0 && this.position < this.timeline.end) {
      const length = this.timeline.seconds(this.timeline.moment(this.position));
      const rest = (Math.floor(this.position + 1e-9) + 1 - this.position) * length;
      const used = Math.min(seconds, rest);
      this.position = used === rest ? Math.floor(this.position + 1e-9) + 1 : this.position + used / length;
      seconds -= used;
    }
    this.draw();
    if (this.position >= this.timeline.end) this.pause();
    else requestAnimationFrame((next) => this.frame(next));
  }

  /** @param {number} ticks */
  step(ticks) {
    const at = this.position + 1e-9 * Math.sign(ticks);
    this.jump(ticks > 0 ? Math.floor(at) + 1 : Math.ceil(at) - 1);
  }

  /** @param {number} rounds */
  round(rounds) {
    const { ticks } = this.timeline;
    const at = this.position / ticks + 1e-9 * Math.sign(rounds);
    this.jump((rounds > 0 ? Math.floor(at) + 1 : Math.ceil(at) - 1) * ticks);
  }

  /** @param {number} position @param {boolean} [tell] is it the end of what the reader does? */
  jump(position, tell = true) {
    this.mark(false);
    this.position = Math.min(Math.max(position, 0), this.timeline.end);
    this.draw();
    if (tell) this.actions.summarise();
  }

  draw() {
    byId("scrubber").value = this.position;
    this.actions.draw(this.position);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.altKey || event.ctrlKey || event.metaKey || target.matches("input:not(#scrubber), select")) return;
    if (event.key === " " && !target.matches("button, summary, a")) this.playing ? this.pause() : this.play();
    else if (event.key === "ArrowRight") event.shiftKey ? this.round(1) : this.step(1);
    else if (event.key === "ArrowLeft") event.shiftKey ? this.round(-1) : this.step(-1);
    else if (event.key === "Home") this.jump(0);
    else if (event.key === "End") this.jump(this.timeline.end);
    else return;
    event.preventDefault();
  }
}

/** May things move before the reader asks for it? */
export const mayMove = () => !calm.matches;
