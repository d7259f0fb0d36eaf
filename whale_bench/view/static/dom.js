// Elements from data. Text from a run only ever becomes a text node or an attribute, never markup:
// there is no innerHTML in this page. Characters that are invisible or that turn the direction of
// text are shown by name, so that a rollout cannot disguise what it says.

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}\u{e0100}-\u{e01ef}]/gu;

const name = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text with hidden characters spelt out: for attributes and options. */
export const plain = (text) => String(text).replaceAll("\r\n", "\n").replace(HIDDEN, (char) => `‹${name(char)}›`);

/** The text as nodes, hidden characters marked. */
export function nodes(text) {
  const found = [];
  let start = 0;
  text = String(text).replaceAll("\r\n", "\n");
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > start) found.push(document.createTextNode(text.slice(start, match.index)));
    const mark = document.createElement("span");
    mark.className = "hidden-char";
    mark.textContent = name(match[0]);
    found.push(mark);
    start = match.index + match[0].length;
  }
  if (start < text.length) found.push(document.createTextNode(text.slice(start)));
  return found;
}

/** h("a", {href: "#", onclick: f}, "text", node, [more]): an element; null and false are left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([p, v]) => element.style.setProperty(p, v));
    else element.setAttribute(key, value === true ? "" : plain(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else element.append(...nodes(child));
  }
  return element;
}

/** A labelled form control; `id` ties the two together. */
export const field = (id, label, control, hidden = false) => {
  control.id = id;
  return h("p", { class: "field", hidden }, h("label", { for: id }, label), control);
};

export const options = (pairs, chosen) =>
  pairs.map(([value, label]) => h("option", { value, selected: value === chosen }, plain(label)));

export const number = (value) => Number(value).toLocaleString("en");
export const fraction = (value) => Number(value).toFixed(3);
export const seconds = (value) =>
  value >= 100 ? number(Math.round(value)) : value >= 10 ? value.toFixed(1) : value >= 0.01 ? value.toFixed(2) : value > 0 ? "< 0.01" : "0";
export const many = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
