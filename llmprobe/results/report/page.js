"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.body.classList.add("live");

  const rows = Object.fromEntries(Object.entries(data.rows).map(([name, { columns, rows }]) =>
    [name, rows.map((row) => Object.fromEntries(columns.map((column, i) => [column, row[i]])))]));

  // Charts. The interpreter in place of eval, which the page's policy forbids.
  window.llmprobeViews = {};
  const drawn = Object.entries(data.charts).map(([id, spec]) =>
    vegaEmbed(`#${id} .view`, { ...spec, datasets: rows }, {
      renderer: "svg",
      ast: true,
      tooltip: { theme: "dark" },
      actions: { export: true, source: false, compiled: false, editor: false },
    }).then((shown) => { window.llmprobeViews[id] = shown.view; }));
  window.llmprobeReady = Promise.all(drawn);

  // Tables: sort by a column, filter by words.
  const key = (row, column) => {
    const text = row.cells[column].textContent;
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a.localeCompare(b);
    return typeof a === "number" ? -1 : 1; // what is missing stands last
  };
  for (const box of document.querySelectorAll("details.table")) {
    const body = box.querySelector("tbody");
    const headings = [...box.querySelectorAll("thead th")];
    headings.forEach((heading, column) => heading.firstElementChild.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(key(a, column), key(b, column)));
      body.append(...rows);
    }));
    box.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
        row.hidden = !words.every((word) => cells.some((cell) => cell.includes(word)));
      }
    });
    const button = box.querySelector("button.csv");
    button?.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([data.tables[button.dataset.table]], { type: "text/csv" }));
      link.download = button.dataset.name;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
})();
