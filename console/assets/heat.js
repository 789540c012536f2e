// Names the cell of a heat map that is pointed at, and makes it a link to its hour. A row's counts are read once they
// are wanted: those of all rows would be most of the page.
const SVG = "http://www.w3.org/2000/svg";
const KEPT_MILLISECONDS = 60_000;
const rows = new Map();

export function nameCells() {
  let here = null;
  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => {
      const map = event.target.closest?.("table.heat svg");
      here = map && [map, event.clientX];
      if (here) point(...here);
    });
  }
  // A page that was read again has the cell no more.
  document.addEventListener("refreshed", () => { if (here) point(...here); });
}

function point(map, x) {
  const box = map.getBoundingClientRect();
  const columns = map.viewBox.baseVal.width;
  const place = Math.max(0, Math.min(columns - 1, Math.floor(((x - box.left) / box.width) * columns)));
  const { start: first, seconds, to } = map.closest("table").dataset;
  const milliseconds = Number(seconds) * 1000;
  const start = Date.parse(first) + place * milliseconds;
  const range = { from: new Date(start).toISOString(), to: new Date(start + milliseconds).toISOString() };
  const cell = map.querySelector("a") ?? addCell(map);
  cell.setAttribute("href", `${addressOf(map, to)}&${new URLSearchParams(range)}`);
  cell.firstChild.setAttribute("x", place);
  describe(map, place, cell);
}

// What all rows share stands at the table, and the topic is its link's: a page of a hundred rows stays small.
function addressOf(map, shared) {
  const [path, query] = shared.split("?");
  return `${path}/${encodeURIComponent(map.closest("tr").querySelector("th a").textContent)}?${query}`;
}

function addCell(map) {
  const cell = document.createElementNS(SVG, "a");
  cell.setAttribute("tabindex", "-1");
  const shape = document.createElementNS(SVG, "rect");
  shape.setAttribute("width", 1);
  shape.setAttribute("height", 1);
  shape.setAttribute("class", "cell");
  shape.append(document.createElementNS(SVG, "title"));
  cell.append(shape);
  map.append(cell);
  return cell;
}

async function describe(map, place, cell) {
  const row = await read(addressOf(map, map.closest("table").dataset.counts));
  // The pointer may have gone on meanwhile.
  if (cell.firstChild.getAttribute("x") !== String(place)) return;
  const said = row?.[place] ?? "";
  cell.setAttribute("aria-label", said);
  cell.querySelector("title").textContent = said;
  const words = document.querySelector("[data-heat-says]");
  if (words && said) words.textContent = said;
}

function read(address) {
  const known = rows.get(address);
  if (known && Date.now() - known.at < KEPT_MILLISECONDS) return known.row;
  const row = fetch(address).then((answer) => (answer.ok ? answer.json() : null)).then((found) => found?.cells, () => null);
  rows.set(address, { at: Date.now(), row });
  return row;
}
