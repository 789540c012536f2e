// Draws a page's mermaid diagrams in the colours of its theme, and again when the reader changes the theme.
"use strict";

const sources = new Map();

function isDark() {
  const chosen = document.body.dataset.theme;
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

async function drawDiagrams() {
  const diagrams = document.querySelectorAll("pre.mermaid");
  for (const diagram of diagrams) {
    if (!sources.has(diagram)) sources.set(diagram, diagram.textContent);
    diagram.textContent = sources.get(diagram);
    delete diagram.dataset.processed;
  }
  const size = { useMaxWidth: false };
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    theme: isDark() ? "dark" : "neutral",
    themeVariables: { fontSize: "14px" },
    flowchart: { ...size, rankSpacing: 30, nodeSpacing: 30 },
    sequence: size,
    state: size,
  });
  await mermaid.run({ nodes: diagrams });
}

document.addEventListener("DOMContentLoaded", () => {
  drawDiagrams();
  new MutationObserver(drawDiagrams).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawDiagrams);
});
