// The page: which source there is, which view the address asks for.
// Addresses: "#" the run; "#rollout=KEY&step=3" a replay, "&with=KEY" beside another; behind a server
// "#run=NAME" comes first.

import { h, number, options, field, seconds } from "./dom.js";
import { overviewSections } from "./overview.js";
import { Reading } from "./reading.js";
import { ReplayView } from "./replay.js";
import { EmbeddedSource, RemoteSource } from "./source.js";
import { RolloutTable } from "./table.js";

const config = JSON.parse(document.getElementById("config").textContent);
const main = document.getElementById("main");
let source = null;
let overview = null;
let home = null; // the run's view, kept so that filters and scroll are as they were
let reading = null; // where a server has not read the whole run yet
let replay = null;
let came = null; // where the reader came from
let turn = 0; // of navigation; what a slower one brings is dropped

const read = () => new URLSearchParams(location.hash.slice(1));
const address = (entries) => "#" + new URLSearchParams(Object.entries({ run: source?.run, ...entries }).filter(([, value]) => value !== undefined && value !== null && value !== ""));

function show(children, title) {
  main.replaceChildren(...children.flat(Infinity).filter(Boolean));
  document.title = title;
}

async function navigate(first = false) {
  const mine = ++turn;
  replay?.pause();
  replay = null;
  const asked = read();
  try {
    if (config.source === "server") await openRun(asked.get("run"));
    if (mine !== turn) return;
    if (source === null) return;
    overview ??= await source.overview();
    if (mine !== turn) return;
    if (overview.first && reading === null) {
      reading = new Reading(source, overview);
      reading.whole = reading.run(completed);
    }
    document.getElementById("where").textContent = overview.folder;
    if (asked.has("rollout")) await showReplay(asked, mine);
    else showHome(first);
  } catch (error) {
    if (mine === turn) show([h("h1", {}, "This could not be shown"), h("p", { role: "alert" }, error.message)], "whale-bench");
  }
}

/** The run of that name; without a name the list of runs. */
async function openRun(run) {
  if (source !== null && source.run === run && run !== null) return;
  reading?.stop();
  source = overview = home = reading = null;
  const runs = await new RemoteSource("").runs();
  if (run === null && runs.length === 1) run = runs[0].id;
  if (run === null) return showRuns(runs);
  source = new RemoteSource(run);
}

function showRuns(runs) {
  const rows = runs.map((run) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: `#run=${encodeURIComponent(run.id)}` }, run.name)),
    h("td", {}, run.domain), h("td", {}, run.model), h("td", { class: "number" }, `${number(run.n)} × ${number(run.k)}`),
    h("td", { class: "number" }, run.score === null ? "–" : run.score.toFixed(3)), h("td", {}, run.state)));
  document.getElementById("where").textContent = "";
  show([h("h1", {}, "Runs"), runs.length === 0 ? h("p", {}, "There is no run in this folder.") :
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, h("table", { class: "list" }, h("caption", { class: "sr" }, "Runs in this folder"),
      h("thead", {}, h("tr", {}, ["Run", "Environment", "Model", "Examples", "Score", "State"].map((name, place) => h("th", { scope: "col", class: place === 3 || place === 4 ? "number" : null }, name)))),
      h("tbody", {}, rows)))], "Runs · whale-bench");
}

function showHome(first) {
  home ??= makeHome();
  show([home.reading, home.sections, home.table.element], `${overview.settings.model ?? "A run"} · whale-bench`);
  if (first) return;
  const back = came && [...main.querySelectorAll("a.task")].find((link) => link.getAttribute("href") === came);
  (back || main).focus();
}

function makeHome() {
  const table = new RolloutTable(source, overview, (key) => address({ rollout: key }));
  return { reading: reading?.element, table, sections: sections(table) };
}

const sections = (table) => h("div", {}, overviewSections(overview, (group) => table.narrow({ group })));

/** All rollouts are read: what was said of the first ones is said of all, where the reader is. */
async function completed(opened) {
  const found = await opened.overview();
  if (opened !== source) return;
  overview = found;
  if (home === null) return;
  const fresh = sections(home.table);
  const focused = home.sections.contains(document.activeElement);
  home.sections.replaceWith(fresh);
  home.sections = fresh;
  if (focused) main.focus({ preventScroll: true });
  await home.table.renew(overview);
}

async function showReplay(asked, mine) {
  const key = asked.get("rollout");
  const beside = asked.get("with");
  came = address({ rollout: key });
  const fetch = () => Promise.all([key, beside].filter(Boolean).map((name) => source.rollout(name)));
  let found = await fetch();
  if (found.includes(null) && overview.first) { // it may be one that has not been read yet
    show([h("h1", {}, "This rollout has not been read yet"), reading.element], "whale-bench");
    await reading.whole;
    if (mine !== turn) return;
    found = await fetch();
  }
  const lost = [key, beside][found.indexOf(null)];
  if (lost) throw new Error(`This page holds no rollout ${lost}.`);
  const example = found[0].example_id;
  const siblings = (await source.rows({ example, sort: "order", offset: 0, limit: 500, by: "rollout" })).rows.sort((a, b) => a.sample - b.sample);
  if (mine !== turn) return;
  replay = new ReplayView(found, {
    step: Number.parseInt(asked.get("step") ?? "1", 10) - 1 || 0,
    onStep: (step) => { if (mine === turn) history.replaceState(null, "", address({ rollout: key, with: beside, step: step + 1 })); },
  });
  show([head(found[0], siblings, key, beside), replay.element], `Sample ${found[0].sample} of ${example} · whale-bench`);
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function head(shown, siblings, key, beside) {
  const place = siblings.findIndex((row) => row.key === key);
  const others = siblings.filter((row) => row.key !== key);
  const go = (row, label) => row && h("a", { href: address({ rollout: row.key }) }, label);
  const words = (row) => `sample ${row.sample}: ${row.reward > 0.5 ? "solved" : "failed"}, ${row.stop}, ${row.turns} turns, ${seconds(row.seconds)} s`;
  const select = h("select", { onchange: (event) => { location.hash = address({ rollout: key, with: event.target.value, step: (replay?.step ?? 0) + 1 }); } },
    options([["", "nothing"], ...others.map((row) => [row.key, words(row)])], beside ?? ""));
  return h("div", { class: "heading" }, h("nav", { class: "crumbs", "aria-label": "Rollouts of this example" }, h("a", { href: address({}) }, "‹ All rollouts"),
      go(siblings[place - 1], "previous sample"), go(siblings[place + 1], "next sample")),
    h("h1", { class: "task-line" }, shown.task.length > 160 ? `${shown.task.slice(0, 159)}…` : shown.task || "A rollout"),
    h("p", { class: "lead" }, h("span", { class: "folder" }, shown.example_id)),
    others.length > 0 ? field("beside", "Side by side with", select) : h("p", { class: "note" }, "No other rollout of this example is here."));
}

// A page that belongs to a site leads back to it.
if (config.back) document.querySelector(".brand").append(" ", h("a", { class: "back", href: config.back.href }, config.back.label));

addEventListener("hashchange", () => navigate());
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && replay && !event.target.closest?.("select")) location.hash = address({});
  else replay?.key(event);
});
addEventListener("beforeprint", () => main.querySelectorAll("details.frame, details.known").forEach((item) => { item.open = true; }));

if (config.source === "embedded") source = await EmbeddedSource.read(document.getElementById("data").textContent.trim());
await navigate(true);
