// What agents, models or keys took over some time: a table, and charts of how it went. The choice is part of the address.

import { ask } from "./api.js";
import { bar, el, empty, panel, svg } from "./dom.js";
import { choice, days } from "./fields.js";
import { NONE, count, duration, moment, money, percent, plural, rate, short } from "./format.js";

const BY = [["agent", "by agent"], ["model", "by model"], ["session", "by session"], ["key", "by key"], ["tag", "by tag"],
  ["replica", "by replica"]];
const SINCE = [["3600", "the last hour"], ["86400", "the last day"], ["604800", "the last week"],
  ["2592000", "the last 30 days"]];
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [420, 120, 58, 18];
const HEAD = (noun) => [["name"], [`${noun}s`, "num"], ["with errors", "num"], ["p50", "num"], ["p95", "num"],
  ["prompt", "num rather"], ["cached", "num"], ["recomputed", "num rather"], ["output", "num rather"], ["cost", "num"]];

export async function showSummary(main, { query }, signal) {
  const given = new URLSearchParams(query);
  const by = choice(BY, given.get("by") ?? "agent", "Group by");
  const since = choice(SINCE, given.get("since_s") ?? "86400", "How far back");
  const between = days(given);
  const place = el("div", {});
  const fill = async () => {
    const asked = new URLSearchParams({ by: by.value, since_s: since.value });
    for (const [name, value] of Object.entries(between.asked())) if (value) asked.set(name, value);
    history.replaceState(null, "", `#/summary?${asked}`);
    const found = await ask(`summary?${asked}`, signal);
    place.replaceChildren(...draw(found, by.value === "replica" ? "request" : "run"));
  };
  for (const field of [by, since, ...between.fields]) field.addEventListener("change", fill);
  main.append(el("div", { class: "filters" }, by, since, between.element), place);
  await fill();
}

/** What is summed up are runs, or by replica single requests; waiting is always that of requests. */
function draw({ groups, buckets, num_runs: numRuns }, noun) {
  if (!numRuns) return [panel(`No ${noun}s`, "", empty("Nothing was recorded in this time."))];
  const classes = [...new Set(buckets.flatMap((each) => Object.keys(each.queue_p95_ms)))].sort();
  const perSecond = (each) => (1000 * each.num_output) / each.length_ms;
  const charts = [
    chart("Time to first token, p95", buckets, (each) => each.first_token_p95_ms ?? 0, duration, "new"),
    classes.map((name) => chart(`Queue, ${name}, p95`, buckets, (each) => each.queue_p95_ms[name] ?? 0, duration, "queue")),
    chart(`Wall time of a ${noun}, p95`, buckets, (each) => each.wall_p95_ms ?? 0, duration, "new"),
    chart("Cached share of prompts", buckets, (each) => each.num_prompt ? each.num_cached / each.num_prompt : 0,
      (share) => percent(share, 1), "cached"),
    chart("Tokens recomputed", buckets, (each) => each.num_recomputed, short, "recomputed"),
    chart("Output tokens/s", buckets, perSecond, rate, "sampled"),
    chart(`${noun === "run" ? "Runs" : "Requests"} with errors`, buckets, (each) => each.num_bad, count, "recomputed"),
    chart("Cost", buckets, (each) => each.money, (amount) => amount ? money(amount) : "0", "tool"),
  ];
  return [panel("Over time", `each bar ${duration(buckets[0].length_ms)}`, el("div", { class: "charts" }, charts)),
    panel("In figures", plural(numRuns, noun), el("div", { class: "scroll-x" }, table(groups, noun)))];
}

function table(groups, noun) {
  const rows = groups.map((each) => el("tr", {},
    el("td", { class: "cut" }, each.name || "–"), el("td", { class: "num" }, count(each.num_runs)),
    el("td", { class: "num" }, count(each.num_bad)), el("td", { class: "num" }, duration(each.wall_p50_ms)),
    el("td", { class: "num" }, duration(each.wall_p95_ms)), el("td", { class: "num rather" }, short(each.num_prompt)),
    el("td", { class: "num" }, percent(each.num_cached, each.num_prompt)),
    el("td", { class: "num rather" }, short(each.num_recomputed)),
    el("td", { class: "num rather" }, short(each.num_output)), el("td", { class: "num" }, each.money ? money(each.money) : NONE)));
  return el("table", { class: "summary" }, el("thead", {}, el("tr", {},
    HEAD(noun).map(([name, kind = ""]) => el("th", { class: kind }, name)))), el("tbody", {}, rows));
}

function chart(title, buckets, valueOf, words, kind) {
  const values = buckets.map(valueOf);
  const most = Math.max(...values) || 1;
  const step = (WIDTH - LEFT) / values.length;
  const base = HEIGHT - BOTTOM;
  const last = buckets.at(-1);
  const end = last.start_ms + last.length_ms;
  const label = `${title}: at most ${words(Math.max(...values))}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": label },
    svg("path", { class: "edge", d: `M${LEFT} ${base}H${WIDTH}` }),
    svg("text", { x: LEFT - 6, y: 12, "text-anchor": "end" }, words(Math.max(...values))),
    svg("text", { x: LEFT - 6, y: base, "text-anchor": "end" }, "0"),
    svg("text", { x: LEFT, y: HEIGHT - 4 }, moment(buckets[0].start_ms)),
    svg("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, Date.now() - end < last.length_ms ? "now" : moment(end)),
    values.map((value, i) => {
      const height = ((base - 4) * value) / most;
      const tip = () => [words(value), ["from", moment(buckets[i].start_ms)], ["runs", count(buckets[i].num_runs)],
        ["requests", count(buckets[i].num_requests)]];
      return value > 0 && bar(kind, LEFT + i * step, base - height, step - 1, height, { tip });
    }));
  return el("figure", {}, el("figcaption", { class: "muted" }, title), drawing);
}
