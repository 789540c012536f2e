// Copies payloads bit for bit: they come as base64, because HTML changes line ends, and are text only here. A button
// is enabled once a click on it does something.
export function offerCopies() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button, new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes(button.dataset.copy)));
  });
  // A refreshed part has its buttons as the server wrote them.
  document.addEventListener("refreshed", enable);
  enable();
}

function enable() {
  for (const button of document.querySelectorAll("[data-copy]")) button.disabled = false;
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

async function copy(button, text) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow copying";
  }
  setTimeout(() => { button.textContent = said; }, 2000);
}
