// Draws a chess position: squares, coordinates, the last move, a king in check, python-chess's pieces.
// Takes what `board.py` calls a Position; its words are the drawing's text alternative.

const SVG = "http://www.w3.org/2000/svg";
const SIZE = 45;
const EDGE = 18;
const NAMES = { p: "pawn", n: "knight", b: "bishop", r: "rook", q: "queen", k: "king" };

function svg(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Piece letters by square name. */
function placed(placement) {
  const found = {};
  placement.split("/").forEach((row, down) => {
    let file = 0;
    for (const char of row) {
      if (/\d/.test(char)) file += Number(char);
      else found["abcdefgh"[file++] + (8 - down)] = char;
    }
  });
  return found;
}

/** An SVG of the position. */
export function board(position) {
  const full = 8 * SIZE + EDGE;
  const root = svg("svg", { viewBox: `0 0 ${full} ${full}`, class: "board", role: "img" });
  root.setAttribute("aria-label", position.alt);
  const last = [position.last.slice(0, 2), position.last.slice(2, 4)];
  const pieces = placed(position.placement);
  for (let down = 0; down < 8; down++) {
    for (let right = 0; right < 8; right++) {
      const file = position.white_below ? right : 7 - right;
      const rank = position.white_below ? 8 - down : down + 1;
      const square = "abcdefgh"[file] + rank;
      const x = EDGE + right * SIZE;
      const y = down * SIZE;
      const shade = (file + rank) % 2 === 0 ? "light" : "dark";
      svg("rect", { x, y, width: SIZE, height: SIZE, class: `square ${shade}` }, root);
      if (last.includes(square)) svg("rect", { x, y, width: SIZE, height: SIZE, class: "square last" }, root);
      if (square === position.check) {
        svg("circle", { cx: x + SIZE / 2, cy: y + SIZE / 2, r: SIZE / 2 - 2, class: "check" }, root);
      }
      const piece = pieces[square];
      if (piece) {
        const side = piece === piece.toUpperCase() ? "white" : "black";
        svg("use", { href: `#${side}-${NAMES[piece.toLowerCase()]}`, x, y }, root);
      }
      if (right === 0) label(root, rank, EDGE / 2, y + SIZE / 2 + 4);
      if (down === 7) label(root, "abcdefgh"[file], x + SIZE / 2, full - 5);
    }
  }
  return root;
}

function label(root, text, x, y) {
  svg("text", { x, y, "text-anchor": "middle", class: "coordinate" }, root).textContent = text;
}
