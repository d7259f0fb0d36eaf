// Replays one rollout, or two side by side: a frame at a time, by buttons, arrow keys or on its own.
// Takes what `replay.py` calls Replays; knows nothing of where they come from or of the page around.

import { blocks, facts, messages } from "./blocks.js";
import { board } from "./board.js";
import { h, plain } from "./dom.js";
import { outcome } from "./table.js";

const PAUSE_MS = 1600;
const place = (frame) => (frame.actor === "verdict" ? "verdict" : `${frame.turn} ${frame.actor}`);

/** One rollout's frames; `show(number)` opens one of them. */
class Lane {
  constructor(replay, name) {
    this.replay = replay;
    this.board = replay.frames.some((frame) => frame.board) ? h("div", { class: "stage" }) : null;
    this.items = replay.frames.map((frame, number) => {
      const body = h("div", { class: "frame-body" }, facts(frame.facts), frame.sent ? messages(frame, replay.messages) : null, blocks(frame.blocks));
      return h("details", { class: `frame ${frame.actor}` }, h("summary", {}, h("span", { class: "actor" }, place(frame)), h("span", { class: "frame-title" }, frame.title)), body);
    });
    const heading = h("h2", {}, `Sample ${replay.sample} `, outcome(replay.correct, replay.truncated));
    const groups = replay.groups.map(([group, value]) => [group.replaceAll("_", " "), value]);
    this.element = h("section", { class: this.board ? "lane with-board" : "lane", "aria-label": `${name}: sample ${replay.sample}` }, heading,
      h("div", { class: "lane-body" }, this.board, h("div", { class: "frames" }, this.items)),
      h("details", { class: "about" }, h("summary", {}, "Groups, metrics and key"),
        facts([["key", replay.key], ...groups, ...Object.entries(replay.metrics).map(([metric, value]) => [metric.replaceAll("_", " "), String(Number(value.toFixed(4)))])])));
  }

  get length() { return this.items.length; }

  show(step, scroll) {
    const now = Math.min(step, this.length - 1);
    this.items.forEach((item, number) => {
      item.open = number === now;
      if (number === now) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    });
    const frame = this.replay.frames[now];
    if (this.board) {
      const position = frame.board;
      this.board.replaceChildren(...(position ? [board(position), h("p", { class: "board-words" }, position.alt)] : []));
    }
    if (scroll && !this.board) this.items[now].scrollIntoView({ block: "nearest" });
    return `${frame.actor === "verdict" ? "" : `turn ${frame.turn}, `}${frame.actor}: ${frame.title}`;
  }
}

export class ReplayView {
  /** `onStep(step)` hears of every step; `step` is where to begin. */
  constructor(replays, { step = 0, onStep = () => {} } = {}) {
    this.lanes = replays.map((replay, number) => new Lane(replay, number === 0 ? "Rollout" : "Beside it"));
    this.length = Math.max(...this.lanes.map((lane) => lane.length));
    this.onStep = onStep;
    this.timer = null;
    const button = (label, title, act) => h("button", { type: "button", title, onclick: act }, label);
    this.buttons = {
      first: button("First", "First step", () => this.go(0)),
      previous: button("‹ Back", "Step back (left arrow)", () => this.go(this.step - 1)),
      play: button("Play", "Play or pause", () => this.toggle()),
      next: button("Next ›", "Step on (right arrow)", () => this.go(this.step + 1)),
      last: button("Last", "Last step", () => this.go(this.length - 1)),
    };
    this.count = h("p", { class: "count" });
    this.live = h("p", { class: "sr", "aria-live": "polite", id: "step-live" });
    const all = button("Open all", "Open every step", () => this.lanes.forEach((lane) => lane.items.forEach((item) => { item.open = true; })));
    this.element = h("div", { class: "replay" },
      h("div", { class: "toolbar", role: "group", "aria-label": "Steps" }, Object.values(this.buttons), this.count, all,
        h("p", { class: "hint" }, "Arrow keys step")),
      this.live, h("div", { class: replays.length > 1 ? "lanes two" : "lanes" }, this.lanes.map((lane) => lane.element)));
    this.go(Math.min(Math.max(step, 0), this.length - 1), { quiet: true });
  }

  go(step, { quiet = false, playing = false } = {}) {
    if (!playing) this.pause();
    if (step < 0 || step >= this.length) return;
    this.step = step;
    const titles = this.lanes.map((lane) => lane.show(step, !quiet));
    this.count.textContent = `step ${step + 1} of ${this.length}`;
    if (!quiet) this.live.textContent = plain(`Step ${step + 1} of ${this.length}. ${titles.join(". Beside it: ")}`);
    this.#enable();
    this.onStep(step);
  }

  #enable() {
    const { first, previous, next, last } = this.buttons;
    const focused = document.activeElement;
    for (const button of [first, previous]) button.disabled = this.step === 0;
    for (const button of [next, last]) button.disabled = this.step === this.length - 1;
    if (focused instanceof HTMLButtonElement && focused.disabled) this.buttons.play.focus();
  }

  toggle() { if (this.timer === null) this.play(); else this.pause(); }

  play() {
    if (this.step === this.length - 1) this.go(0);
    this.buttons.play.textContent = "Pause";
    this.timer = setInterval(() => {
      this.go(this.step + 1, { playing: true });
      if (this.step === this.length - 1) this.pause();
    }, PAUSE_MS);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.buttons.play.textContent = "Play";
  }

  /** Arrow keys, but for those that a form control or a scrolled box needs itself. */
  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest?.("input, select, textarea, pre")) return;
    const change = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (change === undefined) return;
    event.preventDefault();
    this.go(this.step + change);
  }
}

