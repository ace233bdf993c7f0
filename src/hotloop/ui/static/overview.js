// What is going on right now: asked once a second while it can be seen. Rates are differences of totals, so a page that
// was hidden for a while shows no made-up peak.

import { ask, follow } from "./api.js";
import { el, empty, keepFocus, legend, panel, stack, svg, tile } from "./dom.js";
import { count, duration, percent, plural, rate, short } from "./format.js";
import { followLive } from "./live.js";
import { listRuns, noRuns } from "./runs.js";

const EVERY_MS = 1000;
const MAX_POINTS = 120;
const MIN_POINTS = 20; // fewer do not fill a curve
const CLASSES = ["interactive", "workflow", "background"];

export async function showOverview(main, _, signal) {
  const about = await ask("overview", signal);
  const live = el("div", {});
  const latest = el("div", {});
  main.append(live, latest);
  showLatest(latest, signal);
  if (!about.has_live) {
    live.append(panel("Nothing runs here", "", empty("These are recorded runs.",
      "The dashboard of a running ", el("code", {}, "hotloop serve"), " or ", el("code", {}, "hotloop route"),
        " shows what it is doing, here.")));
    return undefined;
  }
  const points = [];
  followLive(() => "live", EVERY_MS, signal, (now) => {
    remember(points, now);
    live.replaceChildren(...draw(now, points));
  });
  return undefined;
}

function showLatest(place, signal) {
  const more = el("a", { class: "muted", href: "#/runs" }, "all runs →");
  const list = el("div", {});
  const latest = panel("Latest runs", more, list);
  latest.classList.add("latest");
  let drawn = "";
  follow(() => "runs?limit=8", 4 * EVERY_MS, signal, ({ runs }) => {
    const now = JSON.stringify(runs.map((run) => ({ ...run, running_ms: null }))); // that one ticks by itself
    if (now === drawn) return;
    drawn = now;
    keepFocus(list, () => list.replaceChildren(runs.length ? listRuns(runs) : noRuns()));
    if (!latest.isConnected) place.append(latest);
  });
}

/** Adds what happened since the last answer, unless it is the same; a server that was restarted begins again. */
function remember(points, now) {
  const last = points.at(-1);
  if (last?.at_s === now.at_s) return;
  if (last && (now.at_s < last.at_s || now.totals.num_prompt < last.totals.num_prompt)) points.length = 0;
  points.push({ at_s: now.at_s, totals: now.totals });
  if (points.length > MAX_POINTS + 1) points.shift();
}

/** Per second, between each two answers. */
function rates(points, name) {
  return points.slice(1).map((point, i) => {
    const before = points[i];
    return ((point.totals[name] ?? 0) - (before.totals[name] ?? 0)) / (point.at_s - before.at_s);
  });
}

function draw(now, points) {
  const left = el("div", {}, queues(now), now.replicas.length > 0 && replicas(now.replicas));
  return [tiles(now, points), el("div", { class: "columns" }, left, now.kv && memory(now.kv)), requests(now.requests)];
}

function tiles(now, points) {
  const { totals } = now;
  const minute = points.length > 1 ? since(points, 60) : null;
  const output = rates(points, "num_output");
  const read = rates(points, "num_prompt");
  const waiting = Object.values(now.waiting).reduce((sum, number) => sum + number, 0);
  const hasOutput = totals.num_output !== undefined;
  const recently = minute?.num_prompt ? `${percent(minute.num_cached, minute.num_prompt)} in the last minute`
    : "nothing asked in the last minute";
  const made = [["forced", totals.num_forced], ["accepted", totals.num_accepted]].filter(([, number]) => number)
    .map(([what, number]) => `${percent(number, totals.num_output)} ${what}`).join(", ");
  return el("div", { class: "tiles" },
    tile("Running", count(now.num_running), now.max_running ? `of ${count(now.max_running)} in a batch`
      : plural(waiting, "request") + " waiting"),
    tile("Cache hits", percent(totals.num_cached, totals.num_prompt), recently),
    hasOutput && tile("Output tokens/s", rate(output.at(-1) ?? null), sparkline(output, "sampled")),
    tile("Prompt tokens/s", rate(read.at(-1) ?? null), sparkline(read, "cached")),
    tile("Prompt tokens", short(totals.num_prompt), `${short(totals.num_prompt - totals.num_cached)} of them computed`),
    hasOutput && tile("Output tokens", short(totals.num_output), made || "since it started"));
}

/** What the totals grew by in the last so many seconds. */
function since(points, seconds) {
  const last = points.at(-1);
  const first = points.find((point) => last.at_s - point.at_s <= seconds);
  const grown = (name) => last.totals[name] - first.totals[name];
  return { num_prompt: grown("num_prompt"), num_cached: grown("num_cached") };
}

function sparkline(values, kind) {
  const [width, height] = [150, 24];
  const most = Math.max(...values, 1);
  const x = (i) => width - (values.length - 1 - i) * (width / Math.max(values.length - 1, MIN_POINTS));
  const y = (value) => height - 2 - (value / most) * (height - 4);
  const line = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", height, preserveAspectRatio: "none",
    role: "img", "aria-label": `the last ${values.length} seconds, at most ${short(most)}` });
  if (values.length > 1) {
    drawing.append(svg("polygon", { class: `area ${kind}`, points: `${x(0)},${height} ${line} ${width},${height}` }),
      svg("polyline", { class: `line ${kind}`, points: line }));
  }
  return drawing;
}

function queues(now) {
  const names = [...new Set([...CLASSES.filter((name) => name in now.waiting), ...Object.keys(now.waiting)])];
  const most = Math.max(8, ...Object.values(now.waiting));
  return panel("Waiting", "by class, most urgent first", names.map((name) =>
    el("div", { class: "queue-bar" }, name, stack([["queue", now.waiting[name]]], most, { class: "thin" }),
      el("span", { class: "num" }, count(now.waiting[name])))));
}

const MAX_CELLS = 480;
const SHARED = "shared by several sessions";

/** Memory as cells, those of one session together: what its requests hold, what is kept for when it comes back. */
function memory(kv) {
  const perCell = Math.max(1, Math.ceil(kv.num_blocks / MAX_CELLS));
  const free = kv.num_blocks - kv.num_used - kv.num_cached;
  const rest = (name) => kv[name] - kv.sessions.reduce((total, each) => total + each[name], 0);
  const groups = kv.sessions.map((each) => group(each.session ?? SHARED, each.num_used, each.num_cached, 0, perCell));
  groups.push(group("all other sessions", rest("num_used"), rest("num_cached"), 0, perCell));
  groups.push(group("free", 0, 0, free, perCell));
  const size = `${count(kv.num_blocks)} blocks of ${plural(kv.block_size, "token")}`;
  const note = `${size}; a square is ${plural(perCell, "block")}`;
  const shares = [["held", kv.num_used], ["cached", kv.num_cached]];
  return panel("KV memory by session", note, stack(shares, kv.num_blocks, { class: "thin" }),
    legend([["held", `held by requests ${percent(kv.num_used, kv.num_blocks)}`],
      ["cached", `kept ${percent(kv.num_cached, kv.num_blocks)}`], ["free", `free ${percent(free, kv.num_blocks)}`],
      ["shared", SHARED]]),
    el("div", { class: "cells", role: "list", "aria-label": "KV memory by session" }, groups));
}

function group(name, numUsed, numCached, numFree, perCell) {
  if (numUsed + numCached + numFree <= 0) return null;
  const cells = (kind, number) => Array.from({ length: Math.ceil(number / perCell) }, () => el("i", { class: kind }));
  const parts = [["held", numUsed], ["kept", numCached], ["free", numFree]].filter(([, number]) => number > 0);
  const facts = parts.map(([what, number]) => [what, plural(number, "block")]);
  const title = name || "no session";
  const kind = name === SHARED ? "group shared" : "group";
  return el("div", { class: kind, role: "listitem", tip: () => [title, ...facts],
    "aria-label": [title, ...facts.map(([what, number]) => `${number} ${what}`)].join(", ") },
  cells("held", numUsed), cells("cached", numCached), cells("free", numFree));
}

function requests(list) {
  if (!list.length) return panel("Requests", "", empty("Nothing is being answered at the moment."));
  const head = [["session"], ["class", "rather"], ["state"], ["prompt", "num rather"], ["cached", "num"],
    ["output", "num"], ["for", "num rather"]].map(([name, kind = ""]) => el("th", { class: kind }, name));
  const rows = inTrees(list).map(({ name, above, each }) => el("tr", {}, sessionCell(name, above), each
    ? [el("td", { class: "rather" }, each.priority),
      el("td", {}, state(each.state)), el("td", { class: "num rather" }, count(each.num_prompt)),
      el("td", { class: "num" }, percent(each.num_cached, each.num_prompt)),
      el("td", { class: "num" }, count(each.num_output)),
      el("td", { class: "num rather" }, duration(1000 * each.age_s))]
    : el("td", { class: "muted", colspan: head.length - 1 }, "between requests")));
  return panel("Requests", plural(list.length, "request"), el("table", { class: "requests" },
    el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

function sessionCell(name, above) {
  const branch = above.length ? `${"\u00a0\u00a0".repeat(above.length - 1)}└ ` : "";
  const works = above.length ? `${name || "no session"}, works for ${above.join(" → ")}` : null;
  return el("td", { class: "mono cut", "aria-label": works, title: works },
    el("span", { class: "muted", "aria-hidden": "true" }, branch), name || "–");
}

/** Each request below the session it works for; a session that has none at the moment has a line all the same. */
function inTrees(list) {
  const top = { below: new Map(), requests: [], path: [] };
  for (const each of list) {
    let node = top;
    for (const name of [...each.above, each.session]) {
      if (!node.below.has(name)) node.below.set(name, { below: new Map(), requests: [], path: [...node.path, name] });
      node = node.below.get(name);
    }
    node.requests.push(each);
  }
  const lines = ({ below, requests: own, path }) => {
    const line = (each) => ({ name: path.at(-1), above: path.slice(0, -1), each });
    return [...(own.length ? own.map(line) : [line(null)]), ...[...below.values()].flatMap(lines)];
  };
  return [...top.below.values()].flatMap(lines);
}

const GOOD = { up: "good", decode: "good", prefill: "busy", down: "bad", lost: "bad", failed: "bad" };

function state(name) {
  return el("span", { class: `state ${GOOD[name] ?? ""}` }, name);
}

function replicas(list) {
  const head = [["replica"], ["state"], ["why"], ["kind", "rather"], ["models", "rather"], ["running", "num"]].map(
    ([name, kind = ""]) => el("th", { class: kind }, name));
  const rows = list.map((each) => el("tr", {},
    el("td", {}, each.name), el("td", {}, state(each.state)), el("td", { class: "why" }, each.why),
    el("td", { class: "rather" }, each.kind), el("td", { class: "rather cut" }, each.models.join(", ")),
    el("td", { class: "num" }, count(each.num_running))));
  const numUp = list.filter((each) => each.state === "up").length;
  return panel("Replicas", `${numUp} of ${list.length} up`, el("table", {}, el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows)));
}
