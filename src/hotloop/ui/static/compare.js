// Two runs side by side: what each took, where its time went, and from which turn on they did other things.

import { ask } from "./api.js";
import { el, panel, stack, swatch } from "./dom.js";
import { NONE, count, duration, longMoment, money, percent, short, shortId } from "./format.js";
import { backToRuns, runState, tagsOf } from "./runs.js";
import { inOrder, kindOf, labelOf } from "./run/parts.js";

const SAME = 0.005; // of a figure; a smaller difference is none

export async function showCompare(main, { ids }, signal) {
  const runs = await Promise.all(ids.map((id) => ask(`runs/${encodeURIComponent(id)}`, signal)));
  if (signal.aborted) return undefined;
  main.append(el("div", { class: "run-head" }, el("h1", {}, "Two runs")), figures(runs), time(runs), turns(runs));
  return (key) => key === "Escape" && (backToRuns(), true);
}

/** Each with what it is called, its value of a run, how that is said, and whether less is better (null: neither). */
const FIGURES = [
  ["wall clock", (run) => run.wall_ms, duration, true],
  ["turns", (run) => run.turns.length, count, true],
  ["tool calls", (run) => tools(run).length, count, null],
  ["first token, median", (run) => median(run.turns.map((turn) => turn.first_token_ms)), duration, true],
  ["prompt tokens", (run) => run.tokens.prompt, short, true],
  ["cached share", (run) => run.tokens.prompt && run.tokens.cached / run.tokens.prompt, (share) => percent(share, 1), false],
  ["tokens recomputed", (run) => run.tokens.recomputed, short, true],
  ["output tokens", (run) => run.tokens.output, short, null],
  ["model idle", (run) => run.model_idle_ms, duration, true],
  ["cost", (run) => run.money, (amount) => amount ? money(amount) : NONE, true],
  ["went wrong", (run) => run.troubles.length, count, true],
];

function figures(runs) {
  const head = el("tr", {}, el("th", {}), runs.map((run, i) => el("th", { class: "num" }, name(run, i))), el("th", { class: "num" },
    "B beside A"));
  const about = [["ended", (run) => runState(run, Boolean(run.error))], ["tags", (run) => tagsOf(run)], ["began", (run) => longMoment(run.start_ms)],
    ["models", (run) => [...new Set(run.turns.map((turn) => turn.model))].filter(Boolean).join(", ") || NONE]];
  const said = about.map(([label, tell]) => el("tr", {}, el("td", { class: "muted" }, label),
    runs.map((run) => el("td", { class: "num cut" }, tell(run))), el("td", {})));
  const rows = FIGURES.map(([label, valueOf, words, isLessBetter]) => {
    const [a, b] = runs.map(valueOf);
    return el("tr", {}, el("td", { class: "muted" }, label), [a, b].map((value) => el("td", { class: "num" }, words(value))),
      el("td", { class: "num" }, change(a, b, isLessBetter)));
  });
  return panel("In figures", "", el("div", { class: "scroll-x" },
    el("table", { class: "compared" }, el("thead", {}, head), el("tbody", {}, said, rows))));
}

function name(run, i) {
  const title = run.agent || run.turns[0]?.model || "request";
  return el("a", { class: "link", href: `#/runs/${run.id}` }, `${"AB"[i]}: `, el("bdi", {}, title.slice(0, 40)), " ", shortId(run.id));
}

function change(a, b, isLessBetter) {
  if (a === null || b === null || a === b || (a && Math.abs(b - a) / a < SAME)) return el("span", { class: "muted" }, "the same");
  const isBetter = isLessBetter === null ? null : (b < a) === isLessBetter;
  const words = a ? `${b > a ? "+" : "−"}${percent(Math.abs(b - a), a)}` : "more";
  const mood = { true: "good", false: "bad" }[isBetter] ?? "";
  const judged = { true: ", better", false: ", worse" }[isBetter] ?? "";
  return el("span", { class: `state ${mood}` }, words + judged);
}

function time(runs) {
  const longest = Math.max(...runs.map((run) => run.wall_ms));
  const bars = runs.map((run, i) => el("div", { class: "compared-bar" }, "AB"[i],
    stack(inOrder(run.parts).map(([part, ms]) => [kindOf(part), ms, () => [labelOf(part), ["time", duration(ms)]]]), longest),
    el("span", { class: "num" }, duration(run.wall_ms))));
  const parts = inOrder(Object.fromEntries(runs.flatMap((run) => Object.entries(run.parts))));
  const rows = parts.map(([part]) => el("tr", {}, el("td", {}, swatch(kindOf(part)), " ", labelOf(part)),
    runs.map((run) => el("td", { class: "num" }, duration(run.parts[part] ?? 0))),
    el("td", { class: "num" }, change(runs[0].parts[part] ?? 0, runs[1].parts[part] ?? 0, true))));
  return panel("Where the time went", "on one scale", bars, el("table", { class: "compared" }, el("tbody", {}, rows)));
}

function turns(runs) {
  const length = Math.max(...runs.map((run) => run.turns.length));
  const called = (turn) => turn ? tools({ turns: [turn] }).map((row) => row.label).join(", ") || "answered" : NONE;
  const divergence = Array.from({ length }, (_, i) => runs.map((run) => called(run.turns[i]))).findIndex(([a, b]) => a !== b);
  const head = ["turn", "A", "", "cached", "recomputed", "B", "", "cached", "recomputed"].map((text, i) =>
    el("th", { class: i % 4 === 1 || !text ? "" : "num" }, text || "time"));
  const cells = (turn) => turn ? [el("td", { class: "cut" }, called(turn)), el("td", { class: "num" }, duration(turn.end - turn.start)),
    el("td", { class: "num" }, percent(turn.tokens.cached, turn.tokens.prompt)),
    el("td", { class: "num" }, short(turn.tokens.recomputed))] : Array.from({ length: 4 }, () => el("td", {}, NONE));
  const rows = Array.from({ length }, (_, i) => el("tr", { class: i === divergence && "divergence" }, el("td", { class: "num" }, i + 1),
    runs.map((run) => cells(run.turns[i]))));
  const note = divergence < 0 ? "both called the same tools" : `they part at turn ${divergence + 1}`;
  return panel("Turn by turn", note, el("div", { class: "scroll-x" }, el("table", { class: "compared" },
    el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))));
}

function tools(run) {
  return run.turns.flatMap((turn) => turn.rows.filter((row) => row.kind === "tool"));
}

function median(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.floor(known.length / 2)] : null;
}
