// Intervals and histograms from elements, so that they follow fonts, themes and narrow screens.

import { fraction, h, number } from "./dom.js";

const percent = (value) => `${(100 * value).toFixed(2)}%`;

/** A mean with its 95% interval on an axis from 0 to 1; `low` is null where there is none. */
export function interval(mean, low, high, label) {
  const words = `${label}: ${fraction(mean)}` + (low === null ? ", no interval" : `, 95% interval ${fraction(low)} to ${fraction(high)}`);
  return h("div", { class: "interval", role: "img", "aria-label": words },
    low === null ? null : h("span", { class: "range", style: { left: percent(low), width: percent(high - low) } }),
    h("span", { class: "point", style: { left: percent(mean) } }));
}

/** Bars beside their labels; a list, so that it reads without the bars. */
export function histogram({ title, unit, bins, note }) {
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  return h("figure", { class: "histogram" },
    h("figcaption", {}, h("h3", {}, title), note ? h("p", { class: "note" }, note) : null),
    bins.length === 0 ? h("p", { class: "note" }, "no values") :
    h("ol", { class: "bars" }, bins.map((bin) =>
      h("li", {}, h("span", { class: "bar-label" }, bin.label),
        h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar", style: { width: percent(bin.count / most) } })),
        h("span", { class: "bar-count" }, number(bin.count), h("span", { class: "sr" }, ` ${unit}`))))));
}
