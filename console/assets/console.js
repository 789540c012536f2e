// What a page does beyond its HTML: live updates, the browser's zone, copying times as UTC, the brush.
import { followPage } from "./live.js";
import { brushCharts } from "./brush.js";
import { watchQuery } from "./editor.js";
import { offerCopies } from "./copy.js";
import { followScans } from "./scan.js";
import { nameCells } from "./heat.js";

const zones = document.querySelector("[data-zones]");
if (zones) {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (own && ![...zones.options].some((option) => option.value === own)) {
    zones.add(new Option(own, own));
  }
  zones.addEventListener("change", () => zones.form.requestSubmit());
}
for (const each of document.querySelectorAll("[data-hide-with-script]")) {
  each.hidden = true;
}

// A time that is copied by itself or within other text is copied as UTC.
document.addEventListener("copy", (event) => {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed || !event.clipboardData) return;
  const range = selection.getRangeAt(0);
  const around = range.commonAncestorContainer;
  const inside = (around.nodeType === Node.ELEMENT_NODE ? around : around.parentElement)?.closest("time");
  const copied = document.createElement("div");
  copied.append(range.cloneContents());
  const times = copied.querySelectorAll("time[datetime]");
  if (!inside && times.length === 0) return;
  for (const each of times) each.textContent = each.getAttribute("datetime");
  event.clipboardData.setData("text/plain", inside ? inside.getAttribute("datetime") : copied.textContent);
  event.preventDefault();
});

// What is dangerous can be pressed once its name stands there; the server asks for it as well.
for (const input of document.querySelectorAll("[data-typed]")) {
  const button = input.form.querySelector("button.danger");
  const look = () => { button.disabled = input.value.trim() !== input.dataset.typed; };
  input.addEventListener("input", look);
  look();
}

const insecure = document.getElementById("insecure");
if (insecure) insecure.hidden = window.isSecureContext;

// A plan has an address of its own: it can be opened again and sent to somebody, and nothing is posted twice.
const plan = document.querySelector("[data-plan]");
if (plan) {
  const here = new URLSearchParams(location.search);
  const source = document.querySelector("[name=source]").value || here.get("source") || "";
  const wanted = { plan: plan.dataset.plan, source, zone: here.get("zone") ?? "" };
  const kept = Object.entries(wanted).filter(([, value]) => value);
  history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(kept)}`);
}

brushCharts();
watchQuery();
offerCopies();
followScans();
nameCells();
followPage();
