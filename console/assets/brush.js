// A range is dragged over a histogram's bars and written into the form's fields, which rule.
export function brushCharts() {
  for (const chart of document.querySelectorAll("[data-brush]")) brush(chart);
}

function brush(chart) {
  const svg = chart.querySelector("svg");
  const bars = [...svg.querySelectorAll("rect[data-start]")];
  const mark = svg.querySelector(".brush");
  const from = document.querySelector("[data-from]");
  const to = document.querySelector("[data-to]");
  let first = null;

  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return Math.max(0, Math.min(bars.length - 1, Math.floor(share * bars.length)));
  };
  const show = (event) => {
    const here = at(event);
    const [low, high] = [Math.min(first, here), Math.max(first, here)];
    mark.setAttribute("x", low);
    mark.setAttribute("width", high - low + 1);
    from.value = bars[low].dataset.start;
    to.value = bars[high].dataset.end;
  };
  svg.addEventListener("pointerdown", (event) => {
    if (bars.length === 0) return;
    first = at(event);
    svg.setPointerCapture(event.pointerId);
    show(event);
  });
  svg.addEventListener("pointermove", (event) => { if (first !== null) show(event); });
  svg.addEventListener("pointerup", () => { first = null; });
}
