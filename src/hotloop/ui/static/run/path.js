// The critical path: of all that went on, what the run was waiting for, step by step. Shortening anything else would
// not have ended it sooner.

import { el, panel, stack } from "../dom.js";
import { duration, percent } from "../format.js";
import { coarsen } from "./parts.js";

const SHOWN = 12;
const KINDS = {
  queue: ["queue", "queue"], prefill: ["new", "prefill"], decode: ["sampled", "decode"],
    tool: ["tool", "tool"], speculative: ["speculative", "begun early"],
  request: ["network", "the server, around it"], chat: ["network", "network"], route: ["network", "router"],
    attempt: ["network", "router"], turn: ["idle", "the run itself"], run: ["idle", "the run itself"],
};

export function pathPanel(shown) {
  const ribbon = el("div", {});
  const body = el("tbody", {});
  let hasAll = false;
  const more = el("button", { type: "button", onclick: () => { hasAll = true; show(); } });
  const show = () => {
    const { run } = shown;
    const longest = [...run.path].sort((a, b) => lengthOf(b) - lengthOf(a));
    const rows = hasAll ? longest : longest.slice(0, SHOWN);
    const total = run.path.reduce((sum, step) => sum + lengthOf(step), 0);
    const most = longest.length ? lengthOf(longest[0]) : 1;
    const steps = coarsen(run.path.map((step) => [kindOf(run, step), step.start, step.end]), total / 1000);
    ribbon.replaceChildren(stack(steps.map(([kind, start, end]) => [kind, end - start]), total));
    body.replaceChildren(...rows.map((step) => drawStep(run, step, most, total, shown)));
    more.textContent = `All ${longest.length} steps`;
    more.hidden = rows.length === longest.length;
  };
  shown.draw(show);
  return panel("Critical path", "the longest steps of what the run waited for", ribbon,
    el("table", { class: "path" }, body), more);
}

function lengthOf(step) {
  return step.end - step.start;
}

function kindOf(run, step) {
  return isRecomputed(run, step) ? "recomputed" : KINDS[step.name]?.[0] ?? "idle";
}

/** Whether most of what a prompt took to read had been read before. */
function isRecomputed(run, step) {
  const tokens = step.name === "prefill" && step.place !== null && run.turns[step.place].tokens;
  return tokens && tokens.recomputed > tokens.new;
}

function titleOf(run, step) {
  const kind = isRecomputed(run, step) ? "prefill, recomputed" : KINDS[step.name]?.[1];
  const what = step.label || (kind ?? "nothing recorded");
  return step.place === null ? what : `Turn ${run.turns[step.place].turn} · ${what}`;
}

function drawStep(run, step, most, total, shown) {
  const length = lengthOf(step);
  const choose = step.place === null ? undefined : () => shown.choose(step.place);
  return el("tr", { onclick: choose }, el("td", { class: "cut" }, titleOf(run, step)),
    el("td", {}, stack([[kindOf(run, step), length]], most, { class: "thin hollow" })),
    el("td", { class: "num" }, duration(length)), el("td", { class: "num muted" }, percent(length, total)));
}
