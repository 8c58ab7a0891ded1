for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("n"), before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : number;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => {
        const cell = row.cells[column];
        return number ? Number(cell.dataset.v ?? -1) : cell.textContent;
      };
      const rows = [...body.rows].map(row => [key(row), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const figure of document.querySelectorAll("figure")) {
  const out = figure.querySelector("output");
  const describe = event => {
    const title = event.target.querySelector && event.target.querySelector(":scope > title");
    if (out && title) out.textContent = title.textContent;
  };
  figure.addEventListener("pointerover", describe);
  figure.addEventListener("pointerdown", describe);
}
