// Keeps #live as the server has it, over server-sent events, and says so when it can't.
const RETRY_MILLISECONDS = 3000;
// An API that hangs answers nothing, not even an error: from this age on, beyond the page's own interval, it is said.
const LATE_SECONDS = 15;
let freshAt = Date.now();

export function followPage() {
  const asOf = document.querySelector("[data-live]");
  if (asOf) {
    connect(asOf);
    setInterval(() => age(asOf), 1000);
  }
  for (const log of document.querySelectorAll("[data-follow]")) toEnd(log);
}

function connect(asOf) {
  const source = new EventSource(asOf.dataset.live + location.search);
  const fresh = (found) => {
    freshAt = Date.now();
    asOf.innerHTML = "as of " + found.as_of;
    asOf.parentElement.classList.remove("late");
    say("");
  };
  source.addEventListener("page", (event) => {
    const found = JSON.parse(event.data);
    replace(document.getElementById("live"), found.html);
    document.dispatchEvent(new Event("refreshed"));
    fresh(found);
  });
  source.addEventListener("tick", (event) => fresh(JSON.parse(event.data)));
  source.addEventListener("away", (event) => {
    asOf.parentElement.classList.add("late");
    say(JSON.parse(event.data).message);
  });
  source.addEventListener("signed-out", () => {
    source.close();
    toSignIn();
  });
  source.addEventListener("error", () => {
    asOf.parentElement.classList.add("late");
    say("The console does not answer. The figures are from the time above. The page keeps trying.");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => connect(asOf), RETRY_MILLISECONDS);
  });
  window.addEventListener("pagehide", () => source.close(), { once: true });
}

// By the page's own clock, which goes on whatever the API and the console do.
function age(asOf) {
  const seconds = Math.floor((Date.now() - freshAt) / 1000);
  if (seconds < Number(asOf.dataset.every) + LATE_SECONDS) return;
  asOf.parentElement.classList.add("late");
  say(`The figures are ${seconds} s old. The API or the console does not answer.`);
}

// A form under way leads on by itself: a sign-out goes on to the provider's page, and must not be cut short.
let isLeaving = false;
window.addEventListener("submit", () => { isLeaving = true; });

export function toSignIn() {
  if (isLeaving) return;
  location.assign("/console/sign-in?return=" + encodeURIComponent(location.pathname + location.search));
}

function say(message) {
  const place = document.getElementById("away");
  if (place.textContent !== message) place.textContent = message;
  place.hidden = message === "";
}

function replace(place, html) {
  const selection = document.getSelection();
  // Text that somebody is selecting stays until they are done.
  if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
  // A parsed document runs no script, and the page's policy allows none of its own.
  const wanted = new DOMParser().parseFromString(html, "text/html").body;
  const atEnd = [...place.querySelectorAll("[data-follow]")].filter(isAtEnd).map((each) => each.id);
  morphChildren(place, wanted);
  for (const id of atEnd) toEnd(document.getElementById(id));
}

// A log is shown from its end on, and stays there unless somebody has scrolled up.
function isAtEnd(log) {
  return log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
}

function toEnd(log) {
  if (log) log.scrollTop = log.scrollHeight;
}

// Changes what differs and leaves the rest, so that focus, scrolling and open details stay: what came or went among
// siblings moves none of the others.
function morphChildren(old, wanted) {
  let at = old.firstChild;
  const drop = () => { const gone = at; at = at.nextSibling; gone.remove(); };
  for (const node of [...wanted.childNodes]) {
    const match = find(at, node);
    if (!match) {
      old.insertBefore(document.importNode(node, true), at);
      continue;
    }
    while (at !== match) drop();
    if (node.nodeType === Node.ELEMENT_NODE) morph(match, node);
    else if (match.nodeValue !== node.nodeValue) match.nodeValue = node.nodeValue;
    at = match.nextSibling;
  }
  while (at) drop();
}

function find(at, node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return at && at.nodeName === node.nodeName ? at : null;
  let match = at;
  while (match && (match.nodeName !== node.nodeName || name(match) !== name(node))) match = match.nextSibling;
  return match;
}

// What tells an element from its siblings; a row is told by what it links to.
function name(element) {
  const link = element.nodeName === "TR" ? element.querySelector("a") : element;
  return element.id || link?.getAttribute("href") || element.classList[0] || "";
}

function morph(old, wanted) {
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, wanted);
}
