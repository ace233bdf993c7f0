// What went wrong in a run, in order: what failed, in which turn, and why. What failed only because of that is left out.

import { el, panel } from "../dom.js";
import { duration } from "../format.js";

const WHAT = { run: "the run", turn: "turn", chat: "model", route: "router", attempt: "replica", request: "request",
  tool: "tool", speculative: "tool, begun early" };

export function troublesPanel(shown) {
  const rows = el("tbody", {});
  shown.draw((run) => rows.replaceChildren(...run.troubles.map((each) => row(each, shown))));
  const head = [["at", "num"], ["turn", "num"], ["what"], ["why"]].map(([name, kind = ""]) => el("th", { class: kind }, name));
  return panel("What went wrong", "", el("table", { class: "troubles" }, el("thead", {}, el("tr", {}, head)), rows));
}

function row(trouble, shown) {
  const turn = shown.run.turns[trouble.place];
  const choose = () => shown.choose(trouble.place);
  return el("tr", {}, el("td", { class: "num" }, duration(trouble.start)),
    el("td", { class: "num" }, turn ? el("button", { type: "button", onclick: choose }, String(turn.turn ?? "–")) : "–"),
    el("td", {}, [WHAT[trouble.name] ?? trouble.name, trouble.label].filter(Boolean).join(" ")),
    el("td", { class: "why" }, el("bdi", {}, trouble.error)));
}
