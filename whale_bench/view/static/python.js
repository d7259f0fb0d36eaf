// Light colours for Python source: strings, comments, numbers, keywords and builtins, nothing else.
// The tokens joined are the source, whatever it is; text that is no Python is merely coloured oddly.

import { h } from "./dom.js";

const TOKEN = new RegExp(
  [
    "(?<comment>#[^\\n]*)",
    "(?<string>[rbfuRBFU]{0,2}(?:\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?))",
    "(?<number>\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.[\\d_]*)?(?:[eE][+-]?\\d+)?j?)\\b)",
    "(?<word>[A-Za-z_]\\w*)",
  ].join("|"),
  "g",
);
const words = (text) => new Set(text.split(" "));
const KEYWORDS = words(
  "and as assert async await break case class continue def del elif else except finally for from global if " +
    "import in is lambda match nonlocal not or pass raise return try while with yield True False None",
);
const BUILTINS = words(
  "abs all any bool bytes chr dict divmod enumerate filter float format int isinstance len list map max min " +
    "next open ord pow print range repr reversed round set sorted str sum tuple type zip",
);

/** Nodes and strings for `h`. */
export function highlight(source) {
  const found = [];
  let start = 0;
  for (const token of source.matchAll(TOKEN)) {
    const [kind] = Object.entries(token.groups).find(([, text]) => text !== undefined);
    const css = kind !== "word" ? kind : KEYWORDS.has(token[0]) ? "keyword" : BUILTINS.has(token[0]) ? "builtin" : null;
    if (css === null) continue;
    if (token.index > start) found.push(source.slice(start, token.index));
    found.push(h("span", { class: `py-${css}` }, token[0]));
    start = token.index + token[0].length;
  }
  found.push(source.slice(start));
  return found;
}
