// Shows the rows of the table of sentences that have every word of the search.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".sentences")) {
    const search = box.querySelector(".sentences-search");
    const count = box.querySelector(".sentences-count");
    const rows = [...box.querySelectorAll("tbody tr")];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const show = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, at) => {
        row.hidden = !words.every((word) => texts[at].includes(word));
        shown += !row.hidden;
      });
      count.textContent = `${shown} of ${rows.length}`;
    };
    search.addEventListener("input", show);
    show();
  }
});
