// Underlines what the gate finds in a query while it is written, and applies the edits that mend it.
const PAUSE_MILLISECONDS = 400;

export function watchQuery() {
  const area = document.querySelector("[data-check]");
  if (area) watch(area);
}

function watch(area) {
  const under = area.parentElement.querySelector(".under");
  const found = document.getElementById("findings");
  let timer = 0;
  let asked = 0;

  const check = async () => {
    const number = ++asked;
    const query = area.value;
    let verdict = null;
    try {
      const answer = await fetch(area.dataset.check, { method: "POST", body: new URLSearchParams(new FormData(area.form)) });
      verdict = await answer.json();
    } catch {
      // Away for a moment; the plan says what is wrong as well.
    }
    // An answer to an older text would underline other words.
    if (number === asked && query === area.value) show(verdict);
  };
  const later = () => {
    under.replaceChildren();
    clearTimeout(timer);
    if (!area.value.trim()) {
      // Without a query, the topic and the range select the messages.
      asked += 1;
      found.replaceChildren();
      return;
    }
    timer = setTimeout(check, PAUSE_MILLISECONDS);
  };
  const show = (verdict) => {
    const findings = verdict?.findings ?? [];
    underline(under, area.value, findings);
    const lines = findings.map((each) => line(`line ${each.line}, column ${each.column}: ${each.message}`, each.rewrite));
    lines.push(...(verdict?.warnings ?? []).map((each) => line(each.message)));
    if (verdict?.passes) lines.push(line("The query is allowed."));
    if (verdict?.problem) lines.push(line(verdict.problem));
    found.replaceChildren(...lines);
    if (verdict?.rewritten) found.append(mend(area, verdict.rewritten.query, later));
  };
  area.addEventListener("input", later);
  area.addEventListener("scroll", () => { under.scrollTop = area.scrollTop; });
  for (const name of ["from", "to", "parameters"]) area.form.elements[name].addEventListener("input", later);
  // A range that is still to be written is no fault of the query.
  if (area.value && (area.form.elements.from.value || !area.value.includes("@from"))) check();
}

// Offsets count characters, of which JavaScript's strings may have two units.
function underline(under, query, findings) {
  const characters = Array.from(query);
  const marked = characters.map(() => false);
  for (const { start, end } of findings) marked.fill(true, start, Math.max(end, start + 1));
  const parts = [];
  for (let at = 0; at < characters.length;) {
    const from = at;
    while (at < characters.length && marked[at] === marked[from]) at += 1;
    const part = document.createElement(marked[from] ? "mark" : "span");
    part.textContent = characters.slice(from, at).join("");
    parts.push(part);
  }
  under.replaceChildren(...parts);
}

function line(text, rewrite) {
  const item = document.createElement("li");
  item.textContent = text;
  if (rewrite) {
    const code = document.createElement(rewrite.endsWith(".") ? "span" : "code");
    code.textContent = rewrite;
    item.append(" ", code);
  }
  return item;
}

function mend(area, query, later) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Correct it";
  button.title = query;
  button.addEventListener("click", () => {
    area.value = query;
    area.focus();
    later();
  });
  const item = document.createElement("li");
  item.append(button);
  return item;
}
