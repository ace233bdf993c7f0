// The prefix map: every prompt as a strip, from its first token to its last. What was cached, what was read again and
// for which cause, what was new; and where it parts from what was read before, with the words if they were recorded.

import { el, empty, legend, panel, stack } from "../dom.js";
import { count, percent, plural, short } from "../format.js";
import { Rows } from "../rows.js";

const HEIGHT = 24;
const MAX_SHOWN = 16;
/** Within a prompt, what was lost stands before the end of the last whole block, and what departs behind it. */
const ORDER = ["evicted", "capacity", "block", "retokenised", "diverged"];
const WHY = {
  diverged: "read again: the prompt departs from what was read before",
  retokenised: "read again: the same text, cut into other tokens",
  evicted: "read again: it had to make room",
  capacity: "read again: it was not kept",
  block: "read again: less than a whole block",
};

export function prefixPanel(run, selection) {
  const turns = run.turns.filter((turn) => turn.tokens.prompt);
  const note = "every prompt from its first token to its last";
  if (!turns.length) return panel("Prefix map", note, empty("No prompt was told of.",
    "Servers of other makes may not report what they had cached."));
  const most = Math.max(...turns.map((turn) => turn.tokens.prompt));
  const places = turns.map((turn) => run.turns.indexOf(turn));
  const render = (i) => drawRow(turns[i], places[i], most, selection);
  const rows = new Rows({ height: HEIGHT, render, class: "prefix-map", role: "list", "aria-label": "Prompts" });
  rows.element.style.height = `${Math.min(turns.length, MAX_SHOWN) * HEIGHT}px`;
  rows.reset(turns.length);
  selection.listen(() => rows.choose(places.indexOf(selection.place)));
  return panel("Prefix map", note, rows.element,
    legend([["cached", "cached"], ["again", "read again"], ["block", "read again: part of a block"], ["new", "new"]]));
}

/** [kind, tokens, tip] from the first token to the last. */
export function spansOf(turn) {
  const { tokens } = turn;
  const again = ORDER.map((reason) => [reason, tokens.causes[reason] ?? 0]).filter(([, number]) => number > 0);
  const told = again.reduce((sum, [, number]) => sum + number, 0);
  if (tokens.again > told) again.push(["diverged", tokens.again - told]);
  const tip = (title, number) => () => [title, ["tokens", count(number)],
    ["of the prompt", percent(number, tokens.prompt)]];
  return [["cached", tokens.cached, tip("cached", tokens.cached)],
    ...again.map(([reason, number]) => [reason === "block" ? "block" : "again", number, tip(WHY[reason], number)]),
    ["new", tokens.new, tip("new", tokens.new)]];
}

function drawRow(turn, place, most, selection) {
  const strip = el("div", { class: "strip" }, stack(spansOf(turn), turn.tokens.prompt, { class: "hollow" }));
  strip.style.width = `${(100 * turn.tokens.prompt) / most}%`;
  const parting = turn.causes.find((cause) => cause.token_index !== undefined && cause.token_index !== null);
  if (parting) {
    const notch = el("i", { class: "notch" });
    notch.style.left = `${(100 * Math.min(parting.token_index, turn.tokens.prompt)) / turn.tokens.prompt}%`;
    strip.append(notch);
  }
  return el("div", { class: "prefix-row", role: "listitem", onclick: () => selection.choose(place) },
    el("span", { class: "num muted" }, turn.turn), strip, el("span", { class: "num" }, short(turn.tokens.prompt)),
    el("span", { class: "cut" }, parting ? tellParting(parting) : tellCauses(turn)));
}

function tellCauses(turn) {
  const causes = ORDER.filter((reason) => turn.tokens.causes[reason] && reason !== "block");
  return el("span", { class: "muted" },
    causes.map((reason) => `${reason} ${count(turn.tokens.causes[reason])}`).join(", "));
}

/** Where a prompt departs from what was read before: the part of it, and the words. */
export function tellParting(cause) {
  const where = cause.kind
    ? `${cause.kind}${cause.index === undefined || cause.index === null ? "" : ` ${cause.index}`}`
    : `token ${count(cause.token_index)}`;
  const place = el("span", { class: "muted" }, `${where}: `);
  if (cause.current === undefined) return el("span", {}, place,
    `${cause.reason}, ${plural(cause.num_tokens, "token")}`);
  return el("span", {}, place, words(cause));
}

/** What was there, struck out; what is there now, highlighted. */
export function words(cause) {
  return el("bdi", { class: "words" }, el("span", { class: "before" }, tail(cause.before)),
    el("del", {}, head(cause.previous)), " ", el("mark", {}, head(cause.current)));
}

function tail(text) {
  return (text ?? "").slice(-40).replace(/\s+/g, " ");
}

function head(text) {
  return (text ?? "").slice(0, 160).replace(/\s+/g, " ");
}
