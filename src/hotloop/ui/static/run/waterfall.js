// The waterfall: a row for each question and each tool, to scale. Tools begin within the bar of the decode that asked
// for them. Only rows that can be seen are drawn, anew at every scroll, so a run of hundreds of turns costs no more.
// Above it, the whole run in one strip: drag over it to look closer, double-click to see all again.
//
// Which time is shown: that of the whole run, that of the rows in sight (a long run begins so), or what was picked.

import { bar, el, legend, svg } from "../dom.js";
import { duration, percent } from "../format.js";
import { coarsen, kindOf, labelOf } from "./parts.js";

const ROW = 20;
const HEAD = 22;
const MAX_LABEL = 170;
const RIGHT = 64;
const MAP = 30;
const MIN_WINDOW_MS = 1;
const LONG = 24; // turns

export class Waterfall {
  constructor(shown) {
    this.shown = shown;
    this.frame = svg("rect", { class: "window", y: 0.5, height: MAP - 1 });
    this.map = svg("svg", { class: "map", height: MAP, role: "img",
      "aria-label": "the whole run; the part that is shown below is framed" });
    this.drawing = svg("svg", { role: "img", "aria-label": "waterfall: each question to the model, and each tool" });
    this.space = el("div", { class: "space" }, this.drawing);
    this.view = el("div", { class: "waterfall", tabindex: "-1" }, this.space);
    this.scale = el("span", { class: "muted" });
    this.modes = ["whole", "rows"].map((mode) => el("button", { type: "button", "data-mode": mode,
      onclick: () => this.show(mode) }, mode === "whole" ? "Whole run" : "Rows in sight"));
    this.element = el("div", {}, this.map, this.view,
      legend([["queue", "queue"], ["new", "new"], ["recomputed", "recomputed"], ["sampled", "sampled"],
      ["forced", "forced"], ["accepted", "accepted"], ["tool", "tool"], ["speculative", "begun early"],
        ["network", "network"], ["idle", "idle"]]));
    this.label = MAX_LABEL;
    this.isDue = false;
    this.mode = this.home;
    this.window = this.whole;
    shown.draw((run) => this.take(run));
    shown.listen(() => this.follow(shown.place));
    this.view.addEventListener("scroll", () => this.redraw(), { passive: true });
    new ResizeObserver(() => { this.drawMap(); this.redraw(); }).observe(this.view);
    this.listenToDrags();
  }

  /** The run, or more of it; what part of it is looked at stays. */
  take(run) {
    this.rows = run.turns.flatMap((turn, place) =>
      turn.rows.map((row, i) => ({ ...row, turn, place, isFirst: i === 0 })));
    this.firstRow = run.turns.map((_, place) => this.rows.findIndex((row) => row.place === place));
    this.space.style.height = `${HEAD + this.rows.length * ROW}px`;
    if (this.mode === "whole") this.window = this.whole;
    this.drawMap();
    this.redraw();
  }

  get run() {
    return this.shown.run;
  }

  /** What is shown unless something else is asked for: a long run is too long to be shown whole. */
  get home() {
    return this.run.turns.length > LONG ? "rows" : "whole";
  }

  get whole() {
    return [0, Math.max(this.run.wall_ms, MIN_WINDOW_MS)];
  }

  get isPicked() {
    return this.mode === "picked";
  }

  show(mode, window = this.whole) {
    this.mode = mode;
    this.window = window;
    this.redraw();
  }

  /** Look closer at a turn, with a little room on either side. */
  showTurn(place) {
    const turn = this.run.turns[place];
    const room = Math.max(0.04 * (turn.end - turn.start), MIN_WINDOW_MS / 2);
    this.show("picked", [Math.max(0, turn.start - room), Math.min(this.whole[1], turn.end + room)]);
  }

  /** Another turn was chosen. */
  follow(place) {
    if (this.isPicked) this.showTurn(place);
    const top = this.firstRow[place] * ROW;
    const bottom = HEAD + top + this.run.turns[place].rows.length * ROW;
    this.view.scrollTop = Math.min(top, Math.max(this.view.scrollTop, bottom - this.view.clientHeight));
    this.redraw();
  }

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.draw(); });
  }

  draw() {
    const width = this.view.clientWidth;
    if (!width) return; // it is hidden, or another view took its place
    const height = Math.min(this.view.clientHeight || 400, HEAD + this.rows.length * ROW);
    this.label = Math.min(MAX_LABEL, 0.3 * width);
    const top = this.view.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - 1);
    const last = Math.min(this.rows.length, Math.ceil((top + height - HEAD) / ROW) + 1);
    const inSight = this.rows.slice(Math.floor(top / ROW), last);
    if (this.mode === "rows" && inSight.length) this.window = this.timeOf(inSight);
    const x = this.axis(width);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("height", height);
    const body = svg("svg", { y: HEAD, width, height: Math.max(height - HEAD, 0) });
    for (let i = first; i < last; i++) body.append(this.drawRow(this.rows[i], i * ROW - top, x, width));
    for (let i = first; i < last; i++) body.append(...this.drawThread(i, top, x));
    this.drawing.replaceChildren(...this.drawAxis(x, width, height), body);
    this.drawFrame(width);
    for (const button of this.modes) button.setAttribute("aria-pressed", button.dataset.mode === this.mode);
    this.scale.textContent = this.mode === "whole" ? "drag over the strip to look closer"
      : `${duration(this.window[1] - this.window[0])} of ${duration(this.run.wall_ms)}`;
  }

  /** From when the first of these rows begins to when the last of them ends. */
  timeOf(rows) {
    const start = Math.min(...rows.map((row) => row.start));
    return [start, Math.max(start + MIN_WINDOW_MS, ...rows.map((row) => row.end))];
  }

  axis(width) {
    const [since, until] = this.window;
    return (ms) => this.label + ((ms - since) / (until - since)) * Math.max(width - this.label - RIGHT, 10);
  }

  drawAxis(x, width, height) {
    const [since, until] = this.window;
    const step = niceStep((until - since) / 6);
    const marks = [];
    for (let at = Math.ceil(since / step) * step; at <= until; at += step) {
      marks.push(svg("line", { class: "edge", x1: x(at), x2: x(at), y1: HEAD - 6, y2: height }),
        svg("text", { x: x(at) + 3, y: 12 }, duration(at)));
    }
    marks.push(svg("line", { class: "edge", x1: 0, x2: width, y1: HEAD - 0.5, y2: HEAD - 0.5 }));
    return marks;
  }

  drawRow(row, y, x, width) {
    const isChosen = row.place === this.shown.place;
    const choose = () => this.shown.choose(row.place);
    const shade = isChosen ? "chosen" : row.place % 2 ? "even" : "";
    const band = svg("rect", { class: `band ${shade}`, x: 0, y, width, height: ROW });
    const indent = 34 + 12 * row.turn.depth + (row.kind === "chat" ? 0 : 12);
    const number = row.isFirst && svg("text", { class: "strong", x: 6, y: 14 }, row.turn.turn);
    const label = svg("svg", { x: 0, y, width: this.label - 8, height: ROW }, number,
      svg("text", { x: indent, y: 14 }, this.labelOf(row)));
    const bars = svg("svg", { x: this.label, y, width: Math.max(width - this.label - RIGHT, 10), height: ROW },
      this.drawBars(row, (ms) => x(ms) - this.label));
    const length = svg("text", { x: width - 4, y: y + 14, "text-anchor": "end" }, duration(row.end - row.start));
    return svg("g", { class: "column", onclick: choose, tip: () => tell(row) }, band, label, bars, length);
  }

  labelOf(row) {
    if (row.kind !== "chat") return row.label;
    return row.isFirst && row.turn.agent && row.turn.depth ? `${row.turn.agent} · ${row.label}` : row.label;
  }

  drawBars(row, x) {
    if (row.kind === "chat") {
      const pieces = row.pieces.map(([part, start, end]) => bar(kindOf(part), x(start), 4, x(end) - x(start), ROW - 8,
        { tip: () => [labelOf(part), ["time", duration(end - start)]] }, 0.5));
      return row.error ? [...pieces, outline(x, row)] : pieces;
    }
    if (row.kind === "speculative") return [bar("speculative", x(row.start), 5, x(row.end) - x(row.start), ROW - 10,
      { class: "wasted", rx: 2 }, 2)];
    const early = row.was_speculative && row.dispatched > row.start
      ? [bar("speculative", x(row.start), 5, x(Math.min(row.dispatched, row.end)) - x(row.start), ROW - 10, { rx: 2 }, 2)]
      : [];
    const since = early.length ? Math.min(row.dispatched, row.end) : row.start;
    return [...early, bar("tool", x(since), 5, x(row.end) - x(since), ROW - 10,
      { rx: 2, class: row.is_error || row.error ? "failed" : "" }, 2)];
  }

  /** From the decode bar in which a call was whole, down to its tool. */
  drawThread(i, top, x) {
    const row = this.rows[i];
    if (row.kind !== "tool") return [];
    const above = this.firstRow[row.place];
    const at = x(row.dispatched);
    const [left, right] = [x(this.window[0]), x(this.window[1])];
    if (at < left || at > right) return [];
    const tick = svg("line", { class: "tick", x1: at, x2: at, y1: above * ROW - top + 2,
      y2: above * ROW - top + ROW - 2 });
    const thread = svg("line", { class: "thread", x1: at, x2: at, y1: above * ROW - top + ROW - 2,
      y2: i * ROW - top + 5 });
    return row.dispatched <= this.rows[above].end ? [tick, thread] : [];
  }

  drawMap() {
    const width = this.view.clientWidth;
    const x = (ms) => (ms / Math.max(this.run.wall_ms, MIN_WINDOW_MS)) * width;
    this.map.setAttribute("width", width);
    const least = this.run.wall_ms / Math.max(width, 1);
    const asked = this.rows.filter((row) => row.kind === "chat").flatMap((row) => row.pieces.map(([part, start, end]) =>
      [kindOf(part), start, end]));
    const tools = this.rows.filter((row) => row.kind !== "chat").map((row) => [row.kind, row.start, row.end]);
    const pieces = [[asked, 3, 12], [tools, 18, 8]].flatMap(([marks, y, height]) =>
      coarsen(marks, least).map(([kind, start, end]) => bar(kind, x(start), y, x(end) - x(start), height, {}, 0.4)));
    this.map.replaceChildren(svg("rect", { class: "mark idle", x: 0, y: 3, width, height: 12, "fill-opacity": 0.5 }),
      ...pieces, this.frame);
  }

  drawFrame(width) {
    const [since, until] = this.window.map((ms) => (ms / this.whole[1]) * width);
    this.frame.setAttribute("x", since + 0.5);
    this.frame.setAttribute("width", this.mode === "whole" ? 0 : Math.max(until - since - 1, 2));
  }

  listenToDrags() {
    let from = null;
    const at = (event) => {
      const box = this.map.getBoundingClientRect();
      return (Math.min(Math.max(event.clientX - box.left, 0), box.width) / box.width) * this.run.wall_ms;
    };
    this.map.addEventListener("pointerdown",
      (event) => { from = at(event); this.map.setPointerCapture(event.pointerId); });
    this.map.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = at(event);
      if (Math.abs(to - from) < this.run.wall_ms / 200) return;
      this.show("picked", [Math.min(from, to), Math.max(from, to, Math.min(from, to) + MIN_WINDOW_MS)]);
    });
    this.map.addEventListener("pointerup", () => { from = null; });
    this.map.addEventListener("dblclick", () => this.show("whole"));
  }
}

function outline(x, row) {
  return svg("rect", { class: "failed", fill: "none", x: x(row.start), y: 3, width: Math.max(x(row.end) - x(row.start),
    2), height: ROW - 6 });
}

function niceStep(about) {
  const base = 10 ** Math.floor(Math.log10(Math.max(about, 1e-3)));
  return [1, 2, 5, 10].map((times) => times * base).find((step) => step >= about);
}

function tell(row) {
  const title = `Turn ${row.turn.turn} · ${row.label}`;
  const length = ["took", duration(row.end - row.start)];
  if (row.kind === "chat") {
    const { tokens } = row.turn;
    return [title, length, ["first token", row.label === "model" ? duration(row.turn.first_token_ms) : null],
      ["cached", row.label === "model" ? percent(tokens.cached, tokens.prompt) : null], ["replica", row.turn.replica],
        ["error", row.error]];
  }
  if (row.kind === "speculative") return [`${title}, begun early, not asked for`, length,
    ["confidence", row.confidence && percent(row.confidence, 1)], ["arguments", row.arguments?.slice(0, 200)]];
  return [title, length, ["waited for", duration(row.waited_ms)], ["begun early", row.was_speculative
    ? duration(row.dispatched - row.start) : null],
    ["tries", row.num_tries > 1 ? row.num_tries : null], ["failed", row.is_error ? "yes" : null], ["error", row.error],
      ["arguments", row.arguments?.slice(0, 200)]];
}
