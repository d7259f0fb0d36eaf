// A replay's typed blocks as elements. Takes what `replay.py` calls Block, Sent and Frame.

import { h, many } from "./dom.js";
import { highlight } from "./python.js";

const TITLES = { reasoning: "Reasoning", python: "Python", output: "Output", query: "Search query", passage: "Passage", call: "Tool call" };

export function block({ kind, text, title = "" }) {
  const heading = title || TITLES[kind];
  const top = heading ? h("p", { class: "block-title" }, heading) : null;
  if (kind === "feedback") return h("p", { class: "feedback" }, text);
  if (kind === "passage") return h("blockquote", { class: "block passage" }, top, h("p", { class: "prose" }, text));
  if (kind === "text") return h("div", { class: "block text" }, top, h("p", { class: "prose" }, text));
  if (kind === "query") return h("div", { class: "block query" }, top, h("p", { class: "prose" }, text));
  const code = kind === "python" ? highlight(text) : kind === "output" && !text ? h("em", {}, "nothing") : text;
  const label = heading || "Text as it was";
  if (kind === "reasoning") return h("div", { class: "block reasoning" }, top, h("p", { class: "prose" }, text));
  return h("div", { class: `block ${kind}` }, top, h("pre", { tabindex: "0", role: "region", "aria-label": label }, h("code", {}, code)));
}

export const blocks = (list = []) => list.map(block);

const message = (sent) =>
  h("li", { class: `message ${["system", "user", "assistant", "tool"].includes(sent.role) ? sent.role : "other"}` },
    h("p", { class: "role" }, sent.role), blocks(sent.blocks));

/** The messages of a call: those that the last call had too are folded away. */
export function messages(frame, all) {
  const sent = (frame.sent ?? []).map((index) => all[index]);
  const known = frame.known ?? 0;
  const list = (part) => h("ol", { class: "messages" }, part.map(message));
  return [
    known > 0 && h("details", { class: "known" },
      h("summary", {}, `${many(known, "message")} as in the call before`), list(sent.slice(0, known))),
    list(sent.slice(known)),
  ];
}

export const facts = (pairs = []) =>
  pairs.length > 0 && h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
