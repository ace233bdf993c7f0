// What the linter says about the prompts of this run.

import { ask } from "../api.js";
import { el, empty, panel } from "../dom.js";
import { duration, money, plural } from "../format.js";

const ORDER = ["error", "warning", "note"];

export function findingsPanel(shown, hasLint, signal) {
  const place = el("div", {});
  if (hasLint) lintAtEnds(shown, place, signal);
  else place.append(empty("No linter looks at runs here.", "In a terminal: ",
    el("code", {}, `hotloop lint --run ${shown.run.id.slice(0, 8)}`), "."));
  return panel("Linter", "", place);
}

/** It is heard at once, and once more when a run that went on has ended. */
function lintAtEnds(shown, place, signal) {
  let wasOpen = null;
  shown.draw((run) => {
    if (run.is_open !== wasOpen) fill(place, run, signal);
    wasOpen = run.is_open;
  });
}

async function fill(place, run, signal) {
  try {
    const { findings } = await ask(`runs/${encodeURIComponent(run.id)}/lint`, signal);
    const sorted = [...findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
    place.replaceChildren(...(sorted.length ? sorted.map(drawFinding)
      : [empty("Nothing to find fault with.", "Prompts can only be looked at where their text was recorded: ",
      el("code", {}, "--trace-content"), ".")]));
  } catch (error) {
    if (!signal.aborted) place.replaceChildren(empty("The linter could not be asked.", error.message));
  }
}

function drawFinding(finding) {
  const cost = [finding.num_tokens && plural(finding.num_tokens, "token"), finding.ms && duration(finding.ms),
    finding.money && money(finding.money)].filter(Boolean).join(" · ");
  return el("article", { class: "finding" }, el("span", { class: `severity ${finding.severity}` }, finding.severity),
    el("div", {}, el("code", {}, finding.rule), " ", el("bdi", {}, finding.words), finding.place
      && el("div", { class: "muted mono" }, finding.place)),
    el("span", { class: "num" }, cost), el("div", { class: "fix" }, finding.fix));
}
