// One run, all of it: what it cost, where its time went, its turns one by one. A turn that is chosen is so everywhere.
// While it goes on it is asked for every second, and grows in place; what has not changed is not sent.

import { ask } from "../api.js";
import { el, empty, panel, refill, tile } from "../dom.js";
import { NONE, duration, longMoment, money, percent, plural, short, shortId } from "../format.js";
import { followLive, ticking } from "../live.js";
import { backToRuns, runState, tagsOf } from "../runs.js";
import { findingsPanel } from "./findings.js";
import { partsPanel } from "./parts.js";
import { pathPanel } from "./path.js";
import { prefixPanel } from "./prefix.js";
import { Shown } from "./shown.js";
import { speculationPanel } from "./speculation.js";
import { tokensPanel } from "./tokens.js";
import { troublesPanel } from "./troubles.js";
import { turnDetail } from "./turn.js";
import { Waterfall } from "./waterfall.js";

const EVERY_MS = 1000;

export async function showRun(main, { id }, signal) {
  const path = `runs/${encodeURIComponent(id)}`;
  const seen = {};
  const [about, run] = await Promise.all([ask("overview", signal), ask(path, signal, seen)]);
  if (signal.aborted) return undefined;
  const shown = new Shown(run);
  const waterfall = new Waterfall(shown);
  const sections = {
    ...run.troubles.length && { "What went wrong": troublesPanel(shown) },
    Time: partsPanel(shown),
    Waterfall: waterfallPanel(shown, waterfall),
    Tokens: tokensPanel(shown),
    "Prefix map": prefixPanel(shown),
    Speculation: speculationPanel(shown),
    "Critical path": pathPanel(shown),
    Linter: findingsPanel(shown, about.has_lint, signal),
  };
  main.append(head(shown), tiles(shown), jumps(sections), ...Object.values(sections));
  if (run.is_open) watch(path, seen, shown, Object.values(sections), signal);
  return (key) => onKey(key, shown, waterfall);
}

function watch(path, seen, shown, sections, signal) {
  followLive(() => path, EVERY_MS, signal, (run) => {
    if (run) standStill(sections, () => shown.update(run));
    return shown.run.is_open;
  }, seen);
}

/** Redraws; what is at the top of the window stays there, however much is put in above it. */
function standStill(sections, redraw) {
  const seen = scrollY > 0 && sections.find((section) => section.getBoundingClientRect().bottom > innerHeight / 4);
  const before = seen && seen.getBoundingClientRect().top;
  redraw();
  if (seen) scrollBy(0, seen.getBoundingClientRect().top - before);
}

function head(shown) {
  const place = el("div", { class: "run-head" });
  shown.draw((run) => refill(place,
    el("h1", {}, el("bdi", {}, run.agent || run.prompt?.slice(0, 80) || "Request")),
    runState(run, Boolean(run.error)), tagsOf(run), el("code", { title: run.id }, shortId(run.id)),
    run.session && el("span", { class: "muted cut" }, "session ",
      el("bdi", { class: "mono" }, run.session.slice(0, 80))),
    el("span", { class: "muted" }, longMoment(run.start_ms)),
    el("span", { class: "muted" }, run.services.join(", ")),
    run.error && el("span", { class: "severity error" }, run.error), el("span", { class: "grow" }),
    el("a", { class: "link", href: `#/runs?${new URLSearchParams({ with: run.id, q: run.agent })}` },
      "compare with another run")));
  return place;
}

function tiles(shown) {
  const place = el("div", { class: "tiles" });
  shown.draw((run) => place.replaceChildren(...tellRun(run)));
  return place;
}

function tellRun(run) {
  const firsts = run.turns.map((turn) => turn.first_token_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
  const tools = run.turns.reduce((sum, turn) => sum + turn.rows.filter((row) => row.kind === "tool").length, 0);
  const { tokens } = run;
  return [
    tile("Wall clock", run.running_ms === null ? duration(run.wall_ms) : ticking(run.running_ms),
      plural(run.turns.length, "turn")),
    tile("First token", firsts.length ? duration(firsts[Math.floor(firsts.length / 2)]) : NONE, "median of the turns"),
    tile("Cached", percent(tokens.cached, tokens.prompt),
      `${short(tokens.prompt - tokens.cached)} of ${short(tokens.prompt)} computed`),
    tile("Recomputed", short(tokens.recomputed),
      tokens.recomputed ? `${percent(tokens.recomputed, tokens.prompt)} of the prompts` : "nothing twice"),
    tile("Output", short(tokens.output), `${percent(tokens.forced + tokens.accepted, tokens.output)} forced or accepted`),
    tile("Model idle", percent(run.model_idle_ms, run.wall_ms),
      `${duration(run.model_idle_ms)}, ${plural(tools, "tool call")}`),
    ...(run.num_saved ? [tile("Stabilised", short(run.num_saved),
      `tokens saved${run.money_saved ? `, ${money(run.money_saved)}` : ""}`)] : []),
    tile("Money", run.money ? money(run.money) : NONE, run.money ? "by the price table" : "no price for this model"),
  ];
}

function jumps(sections) {
  const jump = (section) => (event) => { event.preventDefault(); section.scrollIntoView({ block: "start" }); };
  return el("nav", { class: "jump", "aria-label": "Parts of this page" },
    Object.entries(sections).map(([name, section]) => el("a", { href: location.hash, onclick: jump(section) }, name)));
}

function waterfallPanel(shown, waterfall) {
  const nothing = empty("No question to a model is recorded yet.",
    "What is done in a run appears here when it is over; this one may have ended before it asked one.");
  const beside = el("div", { class: "beside" }, waterfall.element, turnDetail(shown));
  const section = panel("Waterfall", waterfall.scale, nothing, beside);
  const modes = el("span", { class: "modes" }, waterfall.modes);
  section.querySelector("header").append(el("span", { class: "grow" }), modes);
  shown.draw(() => {
    nothing.hidden = waterfall.rows.length > 0;
    beside.hidden = modes.hidden = waterfall.scale.hidden = !nothing.hidden;
  });
  return section;
}

function onKey(key, shown, waterfall) {
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
  if (step && shown.run.turns.length && (key.length === 1 || shown.place >= 0)) shown.choose(shown.place + step);
  else if (key === "Enter" && shown.place >= 0) waterfall.showTurn(shown.place);
  else if (key === "Escape" && waterfall.isPicked) waterfall.show(waterfall.home);
  else if (key === "Escape") backToRuns();
  else return false;
  return true;
}
