// How far a server is with a run that it reads for the first time, and what can be seen until then.
// The bar moves all the time; what is spoken changes at each quarter, and at the end.

import { h, number } from "./dom.js";

const POLL_MS = 250;

export class Reading {
  #stopped = false;
  /** Takes what `data.py` calls a Beginning: `first` rollouts are in the tables until all are. */
  constructor(source, { first, summary }) {
    this.source = source;
    this.said = h("p", { role: "status" });
    this.bar = h("progress", { max: "100", value: "0", "aria-label": "Reading the run" });
    this.share = h("span", { "aria-hidden": "true" }, "0%");
    this.line = h("div", { class: "bar-line" }, this.bar, this.share);
    this.until = `Until all rollouts are read, tables and filters are of the first ${number(first)}, and ${summary ? "scores are as summary.json has them" : "there is no score"}.`;
    this.element = h("section", { class: "reading", "aria-label": "Progress" }, this.said, this.line);
  }

  stop() { this.#stopped = true; }

  /** Waits until all is read, then calls `completed(source)`. */
  async run(completed) {
    try {
      this.said.textContent = this.until;
      let quarter = 0;
      for (;;) {
        const { done, read, total } = await this.source.progress();
        if (this.#stopped) return;
        if (done) break;
        const share = total ? Math.floor((100 * read) / total) : 0;
        this.bar.value = share;
        this.share.textContent = `${share}%`;
        if (Math.floor(share / 25) > quarter) {
          quarter = Math.floor(share / 25);
          this.said.textContent = `${25 * quarter}% read. ${this.until}`;
        }
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
      await completed(this.source);
      this.said.textContent = "All rollouts are read: the page is of the whole run.";
    } catch (error) {
      this.said.textContent = `The run could not be read to its end: ${error.message}. What is shown is of its beginning.`;
    }
    this.line.hidden = true;
  }
}
