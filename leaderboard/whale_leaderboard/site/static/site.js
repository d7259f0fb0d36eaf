// What a page of the board does once it is there: sorting and filtering tables, and reading every
// method of a figure at one budget. Nothing is made from text here: rows are moved or hidden, and numbers set.

theme.closest("[hidden]").hidden = false; // theme.js stands before this

/** A cell's value to sort by: a number where it has one, else its text; a missing one comes last. */
function valueOf(row, column) {
  const raw = row.cells[column].dataset.value ?? row.cells[column].textContent.trim().toLowerCase();
  if (raw === "") return null;
  return Number.isNaN(Number(raw)) ? raw : Number(raw);
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.disabled = false;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : head.dataset.first === "descending";
      for (const other of heads) {
        other.removeAttribute("aria-sort");
        const arrow = other.querySelector(".arrow");
        if (arrow) arrow.textContent = "";
      }
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      head.querySelector(".arrow").textContent = down ? " ▾" : " ▴";
      const rows = [...body.rows].map((row, place) => [row, valueOf(row, column), place]);
      rows.sort(([, a, i], [, b, j]) => {
        if (a === null || b === null) return (a === null) - (b === null) || i - j;
        return (down ? -1 : 1) * compare(a, b) || i - j;
      });
      body.append(...rows.map(([row]) => row));
    });
  });
}

function filterable(form) {
  const table = document.getElementById(form.dataset.table);
  const rows = [...table.tBodies[0].rows];
  const status = document.getElementById(form.dataset.status);
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const apply = () => {
    const asked = [...new FormData(form)].filter(([, value]) => value !== "");
    let shown = 0;
    for (const row of rows) {
      row.hidden = !asked.every(([name, value]) => (name === "text" ? texts.get(row).includes(value.toLowerCase()) : row.dataset[name] === value));
      shown += !row.hidden;
    }
    status.textContent = `${shown} of ${rows.length} rows`;
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply();
}

/** Best score known after so many rollouts: a step, never earlier than its evaluation. */
function at(points, rollouts) {
  let found = null;
  for (const [known, score] of points) if (known <= rollouts) found = score;
  return found;
}

function readable(figure) {
  const chart = figure.querySelector(".chart");
  const slider = figure.querySelector("input[type=range]");
  const said = figure.querySelector("output");
  const rows = [...figure.querySelectorAll("tr[data-points]")];
  const points = new Map();
  const { left, width, most } = figure.dataset;
  const cursor = chart.querySelector(".cursor");
  const read = () => {
    const rollouts = Number(slider.value);
    const x = Number(left) + (Number(width) * rollouts) / Number(most);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const words = `${rollouts.toLocaleString("en")} rollouts`;
    said.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    for (const row of rows) {
      if (!points.has(row)) points.set(row, JSON.parse(row.dataset.points));
      const score = at(points.get(row), rollouts);
      row.querySelector(".now").textContent = score === null ? "none yet" : score.toFixed(4);
    }
  };
  const mark = (number) => {
    chart.classList.toggle("marked", number !== null);
    chart.querySelectorAll(".series").forEach((one) => one.classList.toggle("marked", one.dataset.series === number));
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * chart.viewBox.baseVal.width - Number(left)) / Number(width);
    slider.value = String(Math.min(Math.max(share, 0), 1) * Number(most));
    read();
    mark(event.target.closest(".series")?.dataset.series ?? null);
  });
  chart.addEventListener("pointerleave", () => mark(null));
  for (const row of rows) {
    row.addEventListener("pointerenter", () => mark(row.dataset.series ?? null));
    row.addEventListener("pointerleave", () => mark(null));
    row.addEventListener("focusin", () => mark(row.dataset.series ?? null));
    row.addEventListener("focusout", () => mark(null));
  }
  figure.querySelector(".budget").hidden = false;
  slider.addEventListener("input", read); // the page has what it says at the right end
}

document.querySelectorAll("table[data-sortable]").forEach(sortable);
document.querySelectorAll("form[data-table]").forEach(filterable);
document.querySelectorAll("figure[data-most]").forEach(readable);
addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((item) => { item.open = true; }));
