// The theme that a reader chose, on every page of ours.
const theme = document.getElementById("theme");
function paint(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  theme.value = chosen;
}
try { paint(localStorage.getItem("whale-theme") ?? ""); } catch { paint(""); }
theme.addEventListener("change", () => {
  paint(theme.value);
  try { localStorage.setItem("whale-theme", theme.value); } catch { /* kept for this page only */ }
});
