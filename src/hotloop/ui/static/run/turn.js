// The turn that is chosen, in figures, and what was said in it where that was recorded. Text is shown as text.

import { el, facts, stack, swatch } from "../dom.js";
import { count, duration, money, percent } from "../format.js";
import { inOrder, kindOf, labelOf } from "./parts.js";
import { words } from "./prefix.js";

export function turnDetail(shown) {
  const place = el("aside", { class: "turn", "aria-live": "polite", "aria-label": "The turn that is chosen" });
  let drawn = "";
  const show = () => {
    const turn = shown.run.turns[Math.max(shown.place, 0)];
    const facts = JSON.stringify(turn ?? null);
    if (facts === drawn) return; // a run that grows leaves alone what is being read
    drawn = facts;
    place.replaceChildren(...(turn ? tell(turn) : []));
  };
  shown.listen(show);
  shown.draw(show);
  return place;
}

function tell(turn) {
  return [
    el("h3", {}, `Turn ${turn.turn}`, turn.agent && el("span", { class: "muted" }, ` · ${turn.agent}`)),
    ...tellTime(turn),
    el("h3", {}, "Request"),
    facts([
      ["first token", duration(turn.first_token_ms)],
      ["model", turn.model],
      ["replica", turn.replica],
      ["reason", turn.reason],
      ["class", turn.priority],
      ["ended by", turn.finish_reason],
      ["money", turn.money ? money(turn.money) : null],
      ["error", turn.error],
    ]),
    el("h3", {}, "Tokens"),
    facts(tellTokens(turn.tokens, turn.prefill_ahead, turn.lost)),
    ...tellStabilised(turn),
    ...turn.causes.filter((cause) => cause.reason !== "cold").flatMap(tellCause),
    ...tellTools(turn.rows),
    ...(turn.answer ? [el("h3", {}, "Answer"), said(turn.answer)] : []),
  ];
}

function tellTime(turn) {
  const parts = inOrder(turn.parts);
  const wall = turn.end - turn.start;
  const lines = parts.map(([part, ms]) => [swatch(kindOf(part)), ` ${labelOf(part)}`, ms]);
  return [
    stack(parts.map(([part, ms]) => [kindOf(part), ms]), wall, { class: "thin" }),
    el("dl", { class: "facts" },
      lines.map(([mark, label, ms]) => [el("dt", {}, mark, label), el("dd", {}, duration(ms))]),
      el("dt", {}, "total"), el("dd", {}, duration(wall))),
  ];
}

function tellTokens(tokens, ahead, lost) {
  const some = (number) => (number ? count(number) : null);
  return [
    ["prompt", count(tokens.prompt)],
    ["cached", `${count(tokens.cached)} (${percent(tokens.cached, tokens.prompt)})`],
    ["new", count(tokens.new)],
    ["recomputed", some(tokens.recomputed)],
    ["from host memory", some(tokens.from_host)],
    ["from disk", some(tokens.restored)],
    ["prefilled ahead", some(ahead.prompt)],
    ["for no answer", lost.prompt ? `${count(lost.prompt)} prompt, ${count(lost.output)} output` : null],
    ["output", count(tokens.output)],
    ["forced", some(tokens.forced)],
    ["drafted", tokens.drafted ? `${count(tokens.accepted)} of ${count(tokens.drafted)}` : null],
  ];
}

/** What a router changed in the prompt, so that it begins as the one before it did. */
function tellStabilised({ changes, num_saved: saved, money_saved: worth }) {
  if (!changes.length && !saved) return [];
  return [
    el("h3", {}, "Stabilised", el("span", { class: "muted" }, ` ${count(saved)} tokens saved`)),
    facts([["money saved", worth ? money(worth) : null]]),
    ...changes.map((change) => el("p", {}, change)),
  ];
}

function tellCause(cause) {
  const number = el("span", { class: "muted" }, ` ${count(cause.num_tokens)}`);
  const title = el("h3", {}, `Recomputed: ${cause.reason}`, number);
  return cause.current === undefined ? [title] : [title, el("p", {}, words(cause))];
}

function tellTools(rows) {
  const tools = rows.filter((row) => row.kind !== "chat");
  return tools.length ? [el("h3", {}, "Tools"), ...tools.flatMap(tellTool)] : [];
}

function tellTool(row) {
  const figures = facts([
    [row.label, duration(row.end - row.start)],
    ["waited for", row.kind === "tool" ? duration(row.waited_ms) : "nobody asked"],
    ["failed", row.is_error ? "yes" : null],
    ["error", row.error],
  ]);
  return [figures, ...[row.arguments, row.result].filter(Boolean).map(said)];
}

function said(text) {
  return el("pre", { class: "said", dir: "auto" }, text);
}
