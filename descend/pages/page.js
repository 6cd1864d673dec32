"use strict";
// A click or Enter on the head of a column sorts its table.
const sortBy = button => {
  const head = button.closest("th"), body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  const key = row => {
    const text = row.cells[column].textContent, number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) => (typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1);
  const rows = [...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
};
// A point says its numbers under the pointer.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", event => {
  const mark = event.target.closest && event.target.closest(".chart svg [aria-label]");
  tip.style.display = mark && mark.tagName !== "svg" ? "block" : "none";
  if (tip.style.display === "none") return;
  tip.textContent = mark.getAttribute("aria-label");
  const right = event.clientX + 12 + tip.offsetWidth > innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 12) + "px";
  tip.style.top = event.clientY + 14 + "px";
});
// A press on a series of a legend fades the others; several can be pressed, and none shows all.
const singleOut = button => {
  button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
  const figure = button.closest("figure"), all = [...figure.querySelectorAll(".legend button")];
  const pressed = all.filter(one => one.getAttribute("aria-pressed") === "true");
  for (const one of all)
    for (const layer of one.dataset.layers.split(" "))
      for (const group of figure.querySelectorAll(`.chart g[class*=" layer_${layer}_"]`))
        group.classList.toggle("quiet", pressed.length > 0 && !pressed.includes(one));
};
document.addEventListener("click", event => {
  const button = event.target.closest && event.target.closest("th button, .legend button");
  if (button) (button.closest(".legend") ? singleOut : sortBy)(button);
});
