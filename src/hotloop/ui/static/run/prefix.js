// The prefix map: every prompt as a strip, from its first token to its last. What was cached, what was recomputed and
// for which cause, what was new; and where it parts from what was read before, with the words if they were recorded.

import { el, empty, legend, panel, stack } from "../dom.js";
import { count, percent, plural, short } from "../format.js";
import { Rows } from "../rows.js";

const HEIGHT = 24;
const MAX_SHOWN = 16;
/** Within a prompt, what was lost stands before the end of the last whole block, and what departs behind it. */
const ORDER = ["evicted", "capacity", "block", "retokenised", "diverged"];
const WHY = {
  diverged: "recomputed: the prompt departs from what was computed before",
  retokenised: "recomputed: the same text, cut into other tokens",
  evicted: "recomputed: it had to make room",
  capacity: "recomputed: it was not kept",
  block: "recomputed: less than a whole block",
};

export function prefixPanel(shown) {
  let places = []; // of the turns that have a prompt, in the run
  let most = 1;
  const render = (i) => drawRow(shown.run.turns[places[i]], places[i], most, shown);
  const rows = new Rows({ height: HEIGHT, render, class: "prefix-map", role: "list", "aria-label": "Prompts" });
  const nothing = empty("No prompts were reported.", "Servers of other makes may not report what they had cached.");
  shown.draw((run) => {
    places = run.turns.flatMap((turn, place) => (turn.tokens.prompt ? [place] : []));
    most = Math.max(1, ...places.map((place) => run.turns[place].tokens.prompt));
    rows.element.style.height = `${Math.min(places.length, MAX_SHOWN) * HEIGHT}px`;
    rows.chosen = places.indexOf(shown.place);
    rows.reset(places.length);
    nothing.hidden = places.length > 0;
  });
  shown.listen(() => rows.choose(places.indexOf(shown.place)));
  return panel("Prefix map", "every prompt from its first token to its last", nothing, rows.element,
    legend([["cached", "cached"], ["recomputed", "recomputed"], ["block", "recomputed: part of a block"],
      ["new", "new"]]));
}

/** [kind, tokens, tip] from the first token to the last. */
function spansOf(turn) {
  const { tokens } = turn;
  const recomputed = ORDER.map((reason) => [reason, tokens.causes[reason] ?? 0]).filter(([, number]) => number > 0);
  const told = recomputed.reduce((sum, [, number]) => sum + number, 0);
  if (tokens.recomputed > told) recomputed.push(["diverged", tokens.recomputed - told]);
  const tip = (title, number) => () => [title, ["tokens", count(number)],
    ["of the prompt", percent(number, tokens.prompt)]];
  return [["cached", tokens.cached, tip("cached", tokens.cached)],
    ...recomputed.map(([reason, number]) => [reason === "block" ? "block" : "recomputed", number, tip(WHY[reason], number)]),
    ["new", tokens.new, tip("new", tokens.new)]];
}

function drawRow(turn, place, most, shown) {
  const strip = el("div", { class: "strip" }, stack(spansOf(turn), turn.tokens.prompt, { class: "hollow" }));
  strip.style.width = `${(100 * turn.tokens.prompt) / most}%`;
  const divergence = turn.causes.find((cause) => cause.token_index !== undefined && cause.token_index !== null);
  if (divergence) {
    const notch = el("i", { class: "notch" });
    notch.style.left = `${(100 * Math.min(divergence.token_index, turn.tokens.prompt)) / turn.tokens.prompt}%`;
    strip.append(notch);
  }
  return el("div", { class: "prefix-row", role: "listitem", onclick: () => shown.choose(place) },
    el("span", { class: "num muted" }, turn.turn), strip, el("span", { class: "num" }, short(turn.tokens.prompt)),
    el("span", { class: "cut" }, divergence ? tellDivergence(divergence) : tellCauses(turn)));
}

function tellCauses(turn) {
  const causes = ORDER.filter((reason) => turn.tokens.causes[reason] && reason !== "block");
  return el("span", { class: "muted" },
    causes.map((reason) => `${reason} ${count(turn.tokens.causes[reason])}`).join(", "));
}

/** Where a prompt departs from what was read before: the part of it, and the words. */
function tellDivergence(cause) {
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
