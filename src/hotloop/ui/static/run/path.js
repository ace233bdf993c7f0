// The critical path: of all that went on, what the run was waiting for, step by step. Shortening anything else would
// not have ended it sooner.

import { el, panel, stack } from "../dom.js";
import { duration, percent } from "../format.js";
import { coarsen } from "./parts.js";

const SHOWN = 12;
const KINDS = {
  queue: ["queue", "queue"], prefill: ["new", "reading the prompt"], decode: ["sampled", "writing"],
    tool: ["tool", "tool"], foreseen: ["foreseen", "begun early"],
  request: ["network", "the server, around it"], chat: ["network", "network"], route: ["network", "router"],
    attempt: ["network", "router"], turn: ["idle", "the run itself"], run: ["idle", "the run itself"],
};

export function pathPanel(run, selection) {
  const total = run.path.reduce((sum, step) => sum + step.end - step.start, 0);
  const steps = coarsen(run.path.map((step) => [kindOf(run, step), step.start, step.end]), total / 1000);
  const ribbon = stack(steps.map(([kind, start, end]) => [kind, end - start]), total);
  const body = el("tbody", {});
  const longest = [...run.path].sort((a, b) => b.end - b.start - (a.end - a.start));
  const most = longest.length ? longest[0].end - longest[0].start : 1;
  const fill = (shown) => body.replaceChildren(...shown.map((step) => drawStep(run, step, most, total, selection)));
  fill(longest.slice(0, SHOWN));
  const table = el("table", { class: "path" }, body);
  const more = longest.length > SHOWN
    && el("button", { type: "button", onclick: (event) => { fill(longest); event.currentTarget.remove(); } },
    `All ${longest.length} steps`);
  return panel("Critical path", "the longest steps of what the run waited for", ribbon, table, more);
}

function kindOf(run, step) {
  return isAgain(run, step) ? "again" : KINDS[step.name]?.[0] ?? "idle";
}

/** Whether most of what a prompt took to read had been read before. */
function isAgain(run, step) {
  const tokens = step.name === "prefill" && step.place !== null && run.turns[step.place].tokens;
  return tokens && tokens.again > tokens.new;
}

function titleOf(run, step) {
  const what = step.label || (isAgain(run, step) ? "reading again" : KINDS[step.name]?.[1] ?? "nothing recorded");
  return step.place === null ? what : `Turn ${run.turns[step.place].turn} · ${what}`;
}

function drawStep(run, step, most, total, selection) {
  const length = step.end - step.start;
  const choose = step.place === null ? undefined : () => selection.choose(step.place);
  return el("tr", { onclick: choose }, el("td", { class: "cut" }, titleOf(run, step)),
    el("td", {}, stack([[kindOf(run, step), length]], most, { class: "thin hollow" })),
    el("td", { class: "num" }, duration(length)), el("td", { class: "num muted" }, percent(length, total)));
}
