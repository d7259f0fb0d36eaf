// A run as a whole: score, distributions, groups. Takes what `data.py` calls an Overview, or a Beginning,
// which may lack a summary.

import { histogram, interval } from "./charts.js";
import { fraction, h, many, number, seconds } from "./dom.js";

export function overviewSections(overview, onGroup) {
  const { summary, histograms } = overview;
  return [heading(overview), notices(overview), summary && scores(overview), histograms.length > 0 && distributions(overview),
    overview.groups.length > 0 && groups(overview, onGroup), details(overview)];
}

function heading({ summary, folder, settings }) {
  const { model, domain, tier, split, k } = summary ?? settings;
  const examples = summary?.examples ?? settings.n ?? 0;
  return h("div", { class: "heading" }, h("h1", {}, model),
    h("p", { class: "lead" }, `${domain}, ${tier}/${split}: ${many(examples, "example")} × ${many(k, "rollout")}`,
      h("span", { class: "folder" }, folder)),
    h("dl", { class: "facts ids" }, [["weights", settings.weights_id], ["harness", settings.harness_id]].map(([name, id]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, id ?? "unknown"))))));
}

function notices({ summary, settings, missing, missing_keys: keys, damaged, sample }) {
  const list = [];
  if ((summary ?? settings).fixture) list.push(h("li", {}, "A scripted fixture: it tests the path that a model takes, and is no entry of any ranking."));
  if (sample && sample.shown < sample.of) {
    list.push(h("li", { id: "sample-note" }, sample.note ?? `This page holds ${number(sample.shown)} of ${number(sample.of)} rollouts, chosen by a hash of their keys, `
      + "solved and failed in the proportion of the whole. Scores, distributions and groups are of all rollouts; table and filters are of those held. "
      + "whale-bench view --serve shows all."));
  }
  if (missing > 0) {
    list.push(h("li", { class: "bad", id: "missing-note" }, `${many(missing, "rollout")} missing: the run has no score, only a lower bound.`,
      keys.length > 0 && h("details", {}, h("summary", {}, `Keys of ${keys.length === missing ? "them" : `the first ${keys.length}`}`),
        h("ul", { class: "keys" }, keys.map((key) => h("li", {}, h("code", {}, key)))))));
  }
  if (damaged > 0) list.push(h("li", { class: "bad" }, `${many(damaged, "line")} could not be read and ${damaged === 1 ? "was" : "were"} passed over.`));
  summary?.warnings.forEach((warning) => list.push(h("li", { class: "bad" }, `Warning: ${warning}`)));
  Object.entries(summary?.problems ?? {}).forEach(([problem, count]) => list.push(h("li", { class: "bad" }, `${many(count, "rollout")} failed: ${problem}`)));
  return list.length > 0 && h("section", { "aria-labelledby": "notices" }, h("h2", { id: "notices", class: "sr" }, "Notices"), h("ul", { class: "notices" }, list));
}

function score(title, found, fallback) {
  return h("div", { class: "score" }, h("h3", {}, title),
    found
      ? [h("p", { class: "big" }, fraction(found.mean), h("span", { class: "ci" }, `95% interval ${fraction(found.low)} to ${fraction(found.high)}`)),
        interval(found.mean, found.low, found.high, title), h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, "0.5"), h("span", {}, "1"))]
      : h("p", { class: "big" }, fallback));
}

function scores({ summary, missing }) {
  const judged = summary.judge ? `, judged by ${summary.judge}` : "";
  const missed = missing > 0 ? "–" : `diverged in ${many(summary.diverged, "rollout")}`;
  const pairs = [
    ["examples (n)", number(summary.examples)], ["rollouts each (k)", number(summary.k)],
    ["finished rollouts", number(summary.rollouts)], ["missing rollouts", number(missing)],
    ...Object.entries(summary.pass_at_k).map(([k, value]) => [`pass@${k}`, fraction(value)]),
    ["truncated", `${(100 * summary.truncated).toFixed(1)}%`],
    ["prompt tokens", summary.prompt_tokens === null ? "not reported" : number(summary.prompt_tokens)],
    ["sampled tokens", summary.sampled_tokens === null ? "not reported" : number(summary.sampled_tokens)],
    ...Object.entries(summary.metrics).map(([name, value]) => [`mean ${name.replaceAll("_", " ")}`, Number(value).toFixed(2)]),
    ...Object.entries(summary.seconds).map(([part, value]) => [`seconds, ${part}`, seconds(value)]),
  ];
  return h("section", { "aria-labelledby": "score" }, h("h2", { id: "score" }, "Score"),
    h("div", { class: "scores" },
      score(`mean@${summary.k}, ${summary.profile} profile${judged}`, summary.score, `≥ ${fraction(summary.lower_bound)} (incomplete)`),
      score(`mean@${summary.k}, ${summary.other_profile} profile`, summary.other_score, missed)),
    h("dl", { class: "facts grid" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

const distributions = ({ histograms }) =>
  h("section", { "aria-labelledby": "distributions" }, h("h2", { id: "distributions" }, "Distributions"),
    h("div", { class: "histograms" }, histograms.map(histogram)));

function groups({ groups: list }, onGroup) {
  const table = (rows, caption) =>
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", { class: "sr" }, caption),
        h("thead", {}, h("tr", {}, ["group", "examples", "rollouts", "mean", "95% interval", "from 0 to 1"].map((name, place) =>
          h("th", { scope: "col", class: place > 0 && place < 4 ? "number" : null }, name)))),
        h("tbody", {}, rows.map((row) =>
          h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => onGroup(`${row.name}=${row.value}`) },
              `${row.name.replaceAll("_", " ")}: ${row.value}`, h("span", { class: "sr" }, ", filter by it"))),
            h("td", { class: "number" }, number(row.examples)), h("td", { class: "number" }, number(row.rollouts)),
            h("td", { class: "number" }, fraction(row.mean)),
            h("td", {}, row.low === null ? "–" : `${fraction(row.low)} to ${fraction(row.high)}`),
            h("td", { class: "drawn" }, interval(row.mean, row.low, row.high, `${row.name} ${row.value}`)))))));
  const main = list.filter((row) => row.main);
  const rest = list.filter((row) => !row.main);
  const folded = rest.length > 8;
  return h("section", { "aria-labelledby": "groups" }, h("h2", { id: "groups" }, "Groups"),
    main.length > 0 && table(main, "Scores by main group"),
    rest.length > 0 && (folded ? h("details", {}, h("summary", {}, many(rest.length, main.length ? "more group" : "group")), table(rest, "Scores by group")) : table(rest, "Scores by group")));
}

const details = ({ settings }) =>
  h("details", { class: "settings" }, h("summary", {}, "Weights, harness and settings"),
    h("dl", { class: "facts" }, flat(settings).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, value))))));

const flat = (value, prefix = "") =>
  Object.entries(value).flatMap(([name, found]) => (found !== null && typeof found === "object" && !Array.isArray(found) ? flat(found, `${prefix}${name}.`) : [[prefix + name, String(found)]]));
