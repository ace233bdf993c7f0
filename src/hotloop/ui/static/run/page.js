// One run, all of it: what it cost, where its time went, its turns one by one. A turn that is chosen is so everywhere.

import { ask } from "../api.js";
import { el, empty, panel, tile } from "../dom.js";
import { NONE, duration, longMoment, money, percent, plural, short, shortId } from "../format.js";
import { backToRuns } from "../runs.js";
import { findingsPanel } from "./findings.js";
import { partsPanel } from "./parts.js";
import { pathPanel } from "./path.js";
import { prefixPanel } from "./prefix.js";
import { speculationPanel } from "./speculation.js";
import { tokensPanel } from "./tokens.js";
import { turnDetail } from "./turn.js";
import { Waterfall } from "./waterfall.js";

/** Which turn is looked at, by its place in the run; -1 is none yet. */
class Selection {
  constructor(count) {
    this.count = count;
    this.place = -1;
    this.listeners = [];
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  choose(place) {
    this.place = Math.max(0, Math.min(this.count - 1, place));
    for (const listener of this.listeners) listener();
  }
}

export async function showRun(main, { id }, signal) {
  const [about, run] = await Promise.all([ask("overview", signal), ask(`runs/${id}`, signal)]);
  if (signal.aborted) return undefined;
  const selection = new Selection(run.turns.length);
  const waterfall = new Waterfall(run, selection);
  selection.listen(() => waterfall.follow(selection.place));
  const sections = {
    Time: partsPanel(run),
    Waterfall: waterfallPanel(run, waterfall, selection),
    Tokens: tokensPanel(run, selection),
    "Prefix map": prefixPanel(run, selection),
    Speculation: speculationPanel(run),
    "Critical path": pathPanel(run, selection),
    Linter: findingsPanel(run, about.has_lint, signal),
  };
  main.append(head(run), tiles(run), jumps(sections), ...Object.values(sections));
  return (key) => onKey(key, selection, waterfall);
}

function head(run) {
  const mood = run.end === "failed" || run.error ? "bad" : run.end === "done" ? "good" : "";
  return el("div", { class: "run-head" }, el("h1", {}, el("bdi", {}, run.agent || run.prompt?.slice(0, 80)
    || "Request")),
    el("span", { class: `state ${mood}` }, run.end || "request"), el("code", { title: run.id }, shortId(run.id)),
    run.session && el("span", { class: "muted cut" }, "session ",
      el("bdi", { class: "mono" }, run.session.slice(0, 80))), el("span", { class: "muted" }, longMoment(run.start_ms)),
    el("span", { class: "muted" }, run.services.join(", ")), run.error && el("span", { class: "severity error" },
      run.error));
}

function tiles(run) {
  const firsts = run.turns.map((turn) => turn.first_token_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
  const tools = run.turns.reduce((sum, turn) => sum + turn.rows.filter((row) => row.kind === "tool").length, 0);
  const { tokens } = run;
  return el("div", { class: "tiles" },
    tile("Wall clock", duration(run.wall_ms), plural(run.turns.length, "turn")),
    tile("First token", firsts.length ? duration(firsts[Math.floor(firsts.length / 2)]) : NONE, "median of the turns"),
    tile("Cached", percent(tokens.cached, tokens.prompt),
      `${short(tokens.prompt - tokens.cached)} of ${short(tokens.prompt)} computed`),
    tile("Read again", short(tokens.again), tokens.again ? `${percent(tokens.again, tokens.prompt)} of the prompts`
      : "nothing twice"),
    tile("Output", short(tokens.output), `${percent(tokens.forced + tokens.drafted, tokens.output)} forced or drafted`),
    tile("Model idle", percent(run.model_idle_ms, run.wall_ms),
      `${duration(run.model_idle_ms)}, ${plural(tools, "tool call")}`),
    tile("Money", run.money ? money(run.money) : NONE, run.money ? "by the price table" : "no price for this model"));
}

function jumps(sections) {
  const jump = (section) => (event) => { event.preventDefault(); section.scrollIntoView({ block: "start" }); };
  return el("nav", { class: "jump", "aria-label": "Parts of this page" },
    Object.entries(sections).map(([name, section]) => el("a", { href: location.hash, onclick: jump(section) }, name)));
}

function waterfallPanel(run, waterfall, selection) {
  if (!waterfall.rows.length) return panel("Waterfall", "", empty("No question to a model was recorded.",
    "The run may have ended before it asked one."));
  const section = panel("Waterfall", waterfall.scale, el("div", { class: "beside" }, waterfall.element,
    turnDetail(run, selection)));
  section.querySelector("header").append(el("span", { class: "grow" }), ...waterfall.modes);
  return section;
}

function onKey(key, selection, waterfall) {
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
  if (step && selection.count && (key.length === 1 || selection.place >= 0)) selection.choose(selection.place + step);
  else if (key === "Enter" && selection.place >= 0) waterfall.showTurn(selection.place);
  else if (key === "Escape" && waterfall.isPicked) waterfall.show(waterfall.home);
  else if (key === "Escape") backToRuns();
  else return false;
  return true;
}
