for (const head of document.querySelectorAll(".wide th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const number = head.classList.contains("n"), before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : number;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map(row => {
      const cell = row.cells[head.cellIndex];
      return [number ? Number(cell.dataset.v ?? -1) : cell.textContent, row];
    });
    rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
    body.append(...rows.map(([, row]) => row));
  });
}
document.addEventListener("pointerover", event => {
  const out = event.target.closest("figure")?.querySelector("output");
  const title = event.target.querySelector(":scope > title");
  if (out && title) out.textContent = title.textContent;
});
