// What was begun before anybody asked for it: tools and tokens, won and wasted.

import { el, empty, panel, stack } from "../dom.js";
import { count, duration, percent, plural } from "../format.js";

export function speculationPanel(shown) {
  const note = el("span", {});
  const place = el("div", {});
  shown.draw((run) => {
    note.textContent = `tools ran ${duration(run.tools_hidden_ms)} while the model was writing`;
    const lines = tellWon(run);
    place.replaceChildren(...(lines.length ? lines : [empty("Nothing was begun early.",
      "Tools marked read-only can be: see ", el("code", {}, "docs/speculation.md"), ".")]));
  });
  return panel("Speculation", note, place);
}

function tellWon(run) {
  const tools = run.turns.flatMap((turn) => turn.rows.filter((row) => row.kind === "tool" && row.was_speculative));
  const wasted = run.turns.flatMap((turn) => turn.rows.filter((row) => row.kind === "speculative"));
  const { tokens, prefill_ahead: ahead } = run;
  const lines = [];
  const sum = (rows, length) => rows.reduce((total, row) => total + length(row), 0);
  if (tools.length + wasted.length) {
    const hidden = sum(tools, (row) => Math.max(0, Math.min(row.dispatched, row.end) - row.start));
    lines.push(line("Tools begun early", [["tool", tools.length], ["speculative", wasted.length]],
      `${count(tools.length)} used, ${duration(hidden)} ahead of the model`,
      wasted.length ? `${count(wasted.length)} unused, ${duration(sum(wasted, (row) => row.end - row.start))} of tools`
        : "none unused"));
  }
  if (tokens.drafted) {
    lines.push(line("Tokens drafted", [["accepted", tokens.accepted], ["idle", tokens.drafted - tokens.accepted]],
      `${plural(tokens.accepted, "token")} accepted (${percent(tokens.accepted, tokens.drafted)})`,
        `${count(tokens.drafted - tokens.accepted)} rejected`));
  }
  if (tokens.forced) {
    lines.push(line("Tokens forced", [["forced", tokens.forced], ["idle", tokens.output - tokens.forced]],
      `${plural(tokens.forced, "token")} the grammar left no choice about`,
        `${percent(tokens.forced, tokens.output)} of the output`));
  }
  if (ahead.prompt) {
    lines.push(line("Prefilled ahead", [["cached", ahead.new + ahead.recomputed], ["idle", 0]],
      `${plural(ahead.new + ahead.recomputed, "token")} prefilled while tools ran`, "not waited for in the next turn"));
  }
  return lines;
}

function line(title, shares, won, lost) {
  const total = shares.reduce((sum, [, amount]) => sum + amount, 0);
  return el("div", { class: "won" }, el("span", {}, title), stack(shares, total, { class: "thin" }),
    el("span", {}, won), el("span", { class: "muted" }, lost));
}
