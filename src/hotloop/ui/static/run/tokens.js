// The token ledger: a column for each turn. Above the line what the prompt was made of, below it how the answer came.
// The two have scales of their own: answers are short beside prompts.

import { bar, el, legend, panel, svg } from "../dom.js";
import { count, percent, short } from "../format.js";

const PROMPT = ["cached", "recomputed", "new"];
const OUTPUT = ["sampled", "forced", "accepted"];
const [UP, DOWN, LEFT, MIN_COLUMN, MAX_COLUMN] = [170, 74, 54, 5, 64];

export function tokensPanel(shown) {
  const note = el("span", {});
  const place = el("div", { class: "scroll-x" });
  const draw = () => place.replaceChildren(drawColumns(shown, Math.max(place.clientWidth, 260)));
  new ResizeObserver(draw).observe(place);
  shown.draw(({ tokens }) => {
    const prompt = `${count(tokens.prompt)} prompt, ${percent(tokens.cached, tokens.prompt)} cached`;
    note.textContent = `${prompt}, ${count(tokens.recomputed)} recomputed; ${count(tokens.output)} output`;
    draw();
  });
  shown.listen(() => markChosen(place, shown.place));
  return panel("Tokens, turn by turn", note, place,
    legend([["cached", "cached"], ["recomputed", "recomputed"], ["new", "new"], ["sampled", "sampled"],
      ["forced", "forced"], ["accepted", "drafted, accepted"]]));
}

function markChosen(place, chosen) {
  place.querySelectorAll(".column").forEach((column, i) => column.classList.toggle("chosen", i === chosen));
}

function drawColumns(shown, width) {
  const { turns } = shown.run;
  const step = Math.min(MAX_COLUMN, Math.max(MIN_COLUMN, (width - LEFT - 8) / Math.max(turns.length, 1)));
  const mostPrompt = Math.max(1, ...turns.map((turn) => turn.tokens.prompt));
  const mostOutput = Math.max(1, ...turns.map((turn) => turn.tokens.output));
  const total = Math.max(width, LEFT + step * turns.length + 8);
  const drawing = svg("svg", { width: total, height: UP + DOWN + 34, role: "img",
    "aria-label": "tokens of each turn" });
  drawing.append(...scale(mostPrompt, mostOutput, total));
  turns.forEach((turn, i) => drawing.append(drawColumn(turn, i, LEFT + i * step, step, mostPrompt, mostOutput,
    shown)));
  const every = Math.max(1, Math.ceil(28 / step));
  turns.forEach((turn, i) => {
    if (i % every === 0) drawing.append(svg("text", { x: LEFT + (i + 0.5) * step, y: UP + DOWN + 28,
      "text-anchor": "middle" }, turn.turn));
  });
  return drawing;
}

function scale(mostPrompt, mostOutput, width) {
  const line = (y) => svg("line", { class: "edge", x1: LEFT - 4, x2: width, y1: y, y2: y });
  const text = (y, value) => svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, value);
  return [line(8), text(8, short(mostPrompt)), line(8 + UP / 2), text(8 + UP / 2, short(mostPrompt / 2)), line(8 + UP),
    text(8 + UP, "0"),
    line(8 + UP + DOWN), text(8 + UP + DOWN, short(mostOutput)), text(8 + UP / 4, "prompt"),
      text(8 + UP + DOWN / 2, "output")];
}

function drawColumn(turn, place, x, step, mostPrompt, mostOutput, shown) {
  const width = Math.max(step - (step > 8 ? 3 : 1), 2);
  const column = svg("g", { class: `column ${place === shown.place ? "chosen" : ""}`,
    onclick: () => shown.choose(place), tip: () => tell(turn) });
  column.append(svg("rect", { class: "hit", x, y: 0, width: step, height: UP + DOWN + 14 }));
  let y = 8 + UP;
  for (const kind of PROMPT) {
    const height = (turn.tokens[kind] / mostPrompt) * UP;
    y -= height;
    if (height > 0) column.append(bar(kind, x, y, width, height));
  }
  y = 8 + UP + 1;
  for (const kind of OUTPUT) {
    const height = (turn.tokens[kind] / mostOutput) * (DOWN - 1);
    if (height > 0) column.append(bar(kind, x, y, width, height));
    y += height;
  }
  return column;
}

function tell(turn) {
  const { tokens } = turn;
  return [`Turn ${turn.turn}`, ["prompt", count(tokens.prompt)],
    ...PROMPT.map((kind) => [kind, count(tokens[kind])]),
    ["output", count(tokens.output)], ...OUTPUT.map((kind) => [kind, count(tokens[kind])]),
      ["drafted, rejected", tokens.drafted > tokens.accepted ? count(tokens.drafted - tokens.accepted) : null]];
}
