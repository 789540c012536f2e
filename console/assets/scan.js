// A search for messages: what it finds comes as it is found, with what has been read so far, until Stop.
import { toSignIn } from "./live.js";

export function followScans() {
  for (const place of document.querySelectorAll("[data-scan]")) scan(place, place.dataset.scan);
}

function scan(place, address) {
  const part = (name) => place.querySelector(`[data-${name}]`);
  const [status, stop, found, more] = ["status", "stop", "found", "more"].map(part);
  const source = new EventSource(address);
  const end = () => {
    source.close();
    stop.hidden = true;
  };
  const on = (name, act) => source.addEventListener(name, (event) => act(JSON.parse(event.data)));
  stop.hidden = false;
  more.hidden = true;
  stop.onclick = () => {
    end();
    status.textContent = "Stopped. " + status.textContent.replace(/Reading .*/s, "");
    status.append(" The running query was cancelled.");
  };
  on("progress", ({ html }) => { status.innerHTML = html; });
  on("found", ({ html }) => found.append(...nodes(html)));
  on("failed", ({ html }) => {
    end();
    status.textContent = "";
    found.append(...nodes(html));
  });
  on("end", ({ html, more: next }) => {
    end();
    status.innerHTML = html;
    more.hidden = !next;
    more.onclick = () => scan(place, next);
  });
  on("signed-out", () => {
    source.close();
    toSignIn();
  });
  // It is not begun again by itself: each reading of messages is a query and a line in the audit log.
  source.addEventListener("error", () => {
    end();
    status.textContent = "The console does not answer. The messages found so far are below.";
  });
}

// A parsed document runs no script, and the page's policy allows none of its own.
function nodes(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html").body;
  return [...parsed.childNodes].map((node) => document.importNode(node, true));
}
