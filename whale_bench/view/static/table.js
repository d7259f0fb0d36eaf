// Filters and a paged table of rollouts or examples. Asks a source for one page at a time, so it is
// the same for eighty rollouts in the page and a hundred thousand behind a server.

import { field, h, number, options, plain, seconds } from "./dom.js";

const LIMIT = 50;
const EMPTY = { outcome: "", stop: "", group: "", text: "", example: "", sort: "order", desc: false, offset: 0, limit: LIMIT, by: "rollout" };
const COLUMNS = {
  rollout: [["order", "Rollout"], ["solved", "Outcome"], ["stop", "Ended by"], ["turns", "Turns"], ["tokens", "Tokens"], ["seconds", "Seconds"], [null, "Answer"]],
  example: [["example", "Example"], ["solved", "Solved"], [null, "Rollouts"], ["turns", "Turns"], ["tokens", "Tokens"], ["seconds", "Seconds"]],
};
const NUMBERS = new Set(["turns", "tokens", "seconds"]);

/** The short form of an example id. */
export const short = (id) => (id.length > 28 ? `${id.slice(0, 12)}…${id.slice(-8)}` : id);

export class RolloutTable {
  /** `link(key)` is the address of a rollout's replay. */
  constructor(source, overview, link) {
    this.source = source;
    this.link = link;
    this.query = { ...EMPTY };
    this.asked = 0;
    this.status = h("p", { role: "status", class: "found" });
    this.body = h("div");
    this.form = this.#form(overview);
    this.element = h("section", { "aria-labelledby": "rollouts", class: "rollouts" },
      h("h2", { id: "rollouts", tabindex: "-1" }, "Rollouts"), this.form, this.status, this.body);
    this.refresh();
  }

  /** Narrows the table, from elsewhere on the page. */
  narrow(change) {
    this.#change(change);
    this.element.querySelector("#rollouts").focus();
    this.element.scrollIntoView();
  }

  /** Takes the overview of all rollouts in the place of that of the first ones; the filters stay. */
  renew(overview) {
    for (const [name, pairs] of Object.entries(choices(overview))) {
      const control = this.form.querySelector(`#filter-${name}`);
      control.replaceChildren(...options(pairs, this.query[name]));
      control.parentElement.hidden = pairs.length < 2;
    }
    return this.refresh();
  }

  #form(overview) {
    const { stop: stops, group: groups } = choices(overview);
    const select = (name, label, pairs) =>
      field(`filter-${name}`, label, h("select", { onchange: (event) => this.#change({ [name]: event.target.value }) }, options(pairs, "")), pairs.length < 2);
    const search = h("input", { type: "search", autocomplete: "off", oninput: (event) => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#change({ text: event.target.value }), 150);
    } });
    return h("form", { class: "filters", role: "search", "aria-label": "Filter rollouts", onsubmit: (event) => event.preventDefault() },
      select("outcome", "Outcome", [["", "all"], ["solved", "solved"], ["failed", "failed"], ["truncated", "truncated"]]),
      select("stop", "Ended by", stops),
      select("group", "Group", groups),
      field("filter-text", "Search text", search),
      field("filter-by", "Rows", h("select", { onchange: (event) => this.#change({ by: event.target.value, sort: "order", desc: false }) },
        options([["rollout", "rollouts"], ["example", "examples"]], "rollout"))),
      h("p", { class: "field" }, h("button", { type: "button", onclick: () => this.#change({ ...EMPTY }) }, "Clear filters")));
  }

  #change(change) {
    clearTimeout(this.typing);
    this.query = { ...this.query, offset: 0, ...change };
    for (const name of ["outcome", "stop", "group", "text", "by"]) {
      const control = this.form.querySelector(`#filter-${name}`);
      if (control && control.value !== this.query[name]) control.value = this.query[name];
    }
    return this.refresh();
  }

  async refresh() {
    const asked = ++this.asked;
    let page;
    try {
      page = await this.source.rows(this.query);
    } catch (error) {
      this.status.textContent = `The rows could not be had: ${error.message}`;
      return;
    }
    if (asked !== this.asked) return; // a later question has been asked since
    const { offset, by } = this.query;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const range = page.total === 0 ? "No" : page.total > page.rows.length ? `${number(offset + 1)} to ${number(offset + page.rows.length)} of ${number(page.total)}` : number(page.total);
    this.status.textContent = `${range} ${by}${page.total === 1 ? "" : "s"}${this.query.example ? ` of example ${this.query.example}` : ""}`;
    this.body.replaceChildren(...[this.#table(page.rows), page.total > LIMIT && this.#pager(page.total)].filter(Boolean));
    if (focused) this.body.querySelector(`[data-focus="${focused}"]:not([disabled])`)?.focus();
  }

  #table(rows) {
    const { by, sort, desc } = this.query;
    const head = COLUMNS[by].map(([key, label]) => {
      const sorted = key !== null && key === sort && (key !== "order" || desc);
      return h("th", { scope: "col", class: NUMBERS.has(key) || label === "Rollouts" ? "number" : null, "aria-sort": sorted ? (desc ? "descending" : "ascending") : null },
        key === null ? label : h("button", { type: "button", class: "sort", "data-focus": `sort-${key}`,
          onclick: () => this.#change({ sort: key, desc: key === sort && !desc }) }, label, h("span", { class: "arrow", "aria-hidden": "true" }, sorted ? (desc ? " ▾" : " ▴") : "")));
    });
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of results" },
      h("table", { class: "list" }, h("caption", { class: "sr" }, `${by === "rollout" ? "Rollouts" : "Examples"} that the filters leave`),
        h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => (by === "rollout" ? this.#rollout(row) : this.#example(row))))));
  }

  #rollout(row) {
    const solved = row.reward > 0.5;
    return h("tr", {}, h("th", { scope: "row" }, h("a", { href: this.link(row.key), class: "task" }, row.task.slice(0, 60) || row.example),
        h("span", { class: "sub" }, `${short(row.example)}, sample ${row.sample}`)),
      h("td", {}, outcome(solved, row.truncated)), h("td", {}, row.stop), cell(number(row.turns)),
      cell(row.tokens === null ? "–" : number(row.tokens)), cell(seconds(row.seconds)), h("td", { class: "answer" }, row.answer || "–"));
  }

  #example(row) {
    return h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", class: "link task", onclick: () => this.#change({ ...EMPTY, example: row.example }) }, row.task.slice(0, 60) || row.example),
        h("span", { class: "sub" }, short(row.example))),
      h("td", {}, `${row.solved} of ${row.rollouts}`), cell(number(row.rollouts)), cell(row.turns.toFixed(1)),
      cell(row.tokens === null ? "–" : row.tokens.toFixed(1)), cell(seconds(row.seconds)));
  }

  #pager(total) {
    const { offset } = this.query;
    const last = Math.floor((total - 1) / LIMIT) * LIMIT;
    const go = (label, target, name) => h("button", { type: "button", "data-focus": name, disabled: target === offset || target < 0 || target > last,
      onclick: () => { this.query = { ...this.query, offset: target }; this.refresh(); } }, label);
    return h("nav", { class: "pager", "aria-label": "Pages of the table" }, go("First", 0, "first"), go("Previous", offset - LIMIT, "previous"),
      h("span", {}, `page ${number(offset / LIMIT + 1)} of ${number(last / LIMIT + 1)}`), go("Next", offset + LIMIT, "next"), go("Last", last, "last"));
  }
}

/** What a run's rollouts can be narrowed by, as pairs of value and label; one alone is no choice. */
const choices = ({ summary, groups }) => ({
  stop: [["", "anything"], ...Object.entries(summary?.stop_conditions ?? {}).map(([stop, count]) => [stop, `${stop} (${number(count)})`])],
  group: [["", "all"], ...groups.map(({ name, value }) => [`${name}=${value}`, plain(`${name}: ${value}`)])],
});

const cell = (text) => h("td", { class: "number" }, text);

/** Solved or failed, as a word with a shape, not by colour alone. */
export const outcome = (solved, truncated) => [
  h("span", { class: `pill ${solved ? "good" : "bad"}` }, solved ? "✓ solved" : "✗ failed"), truncated && h("span", { class: "pill" }, "cut off")];

