// What a run waits for: the ledger's parts, in the order they are shown, with the colour that means each. And the bar
// that says how much of the run each took.

import { el, panel, stack, swatch } from "../dom.js";
import { duration, percent } from "../format.js";

const PARTS = {
  router_queue: ["queue", "waiting in the router"],
  queue: ["queue", "waiting in the engine"],
  prefill_new: ["new", "prefill, new"],
  prefill_recomputed: ["recomputed", "prefill, recomputed"],
  hosted_prefill: ["new", "hosted model, first token"],
  decode_sampled: ["sampled", "decode, sampled"],
  decode_forced: ["forced", "decode, forced"],
  decode_accepted: ["accepted", "decode, accepted"],
  hosted_decode: ["sampled", "hosted model, decode"],
  tools: ["tool", "tools waited for"],
  speculative: ["speculative", "tools begun early"],
  prefill_ahead: ["cached", "prefill ahead"],
  prepare: ["network", "preparing the prompt"],
  network: ["network", "network"],
  runtime: ["idle", "agent runtime"],
  client: ["idle", "client idle"],
};

export function kindOf(part) {
  return PARTS[part]?.[0] ?? "idle";
}

export function labelOf(part) {
  return PARTS[part]?.[1] ?? part;
}

/** The parts there are, as [part, ms], in the order of the table. */
export function inOrder(parts) {
  const order = Object.keys(PARTS);
  return Object.entries(parts).filter(([, ms]) => ms > 0).sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
}

/** [kind, start, end]s in order, neighbours alike joined, and what is too short to be seen left to its neighbour. */
export function coarsen(pieces, leastMs) {
  const joined = [];
  for (const [kind, start, end] of pieces) {
    const last = joined.at(-1);
    const isNext = last && start - last[2] < leastMs;
    if (isNext && (last[0] === kind || end - start < leastMs)) last[2] = Math.max(last[2], end);
    else joined.push([kind, start, end]);
  }
  return joined;
}

export function partsPanel(shown) {
  const place = el("div", {});
  shown.draw((run) => place.replaceChildren(...tellParts(run)));
  return panel("Where the time went", "every moment is counted once, for what was waited for", place);
}

function tellParts(run) {
  const parts = inOrder(run.parts);
  const shares = parts.map(([part, ms]) => [kindOf(part), ms, () => [labelOf(part), ["time", duration(ms)],
    ["share", percent(ms, run.wall_ms)]]]);
  const rows = parts.map(([part, ms]) => el("div", { class: "share" }, swatch(kindOf(part)),
    el("span", {}, labelOf(part)),
    el("span", { class: "num" }, duration(ms)), el("span", { class: "num muted" }, percent(ms, run.wall_ms))));
  return [stack(shares, run.wall_ms), el("div", { class: "shares" }, rows)];
}
