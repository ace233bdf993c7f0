// The list of runs: filtered by the server, fetched a page at a time as it is scrolled, drawn only where it is seen.
// The filter is part of the address, so a list can be sent to somebody.

import { ask, follow } from "./api.js";
import { el, empty, keepFocus, stack } from "./dom.js";
import { choice, days } from "./fields.js";
import { NONE, count, duration, longMoment, moment, money, percent, plural, short, shortId } from "./format.js";
import { ticking } from "./live.js";
import { Rows } from "./rows.js";

const PAGE = 200;
const REFRESH_MS = 4000;
const HEAD = [["began", "rather"], ["agent", ""], ["session", "wide"], ["end", ""], ["turns", "num rather"],
  ["wall", "num"], ["prompt", "num wide"], ["cached", "rather"], ["recomputed", "num wide"], ["output", "num wide"],
  ["money", "num wide"]];
const ENDS = [["", "any end"], ["running", "running"], ["done", "done"], ["limit", "at a limit"], ["failed", "failed"],
  ["waiting", "waiting"], ["paused", "paused"],
  ["cancelled", "cancelled"], ["lost", "lost"], ["none", "no agent"]];
const SINCE = [["", "any day"], ["3600", "the last hour"], ["86400", "the last day"], ["604800", "the last week"]];
const SLOWER = [["", "any length"], ["1", "over 1 s"], ["10", "over 10 s"], ["60", "over a minute"]];

let lastQuery = ""; // so that leaving a run comes back to the list it was opened from
let lastChosen = "";

export function backToRuns() {
  location.hash = lastQuery ? `#/runs?${lastQuery}` : "#/runs";
}

export async function showRuns(main, { query }, signal) {
  const filter = new URLSearchParams(query);
  const hasToFind = filter.has("find");
  filter.delete("find");
  const other = filter.get("with");
  if (!other) lastQuery = filter.toString();
  const list = new RunList(filter, signal);
  main.append(other ? picking(other) : "", filters(filter, list, signal), list.element);
  if (hasToFind) {
    history.replaceState(null, "", "#/runs");
    main.querySelector("input").focus();
  }
  await list.fill();
  return (key) => list.onKey(key);
}

/** The list to choose from what a run is compared with. */
function picking(id) {
  return el("p", { class: "picking", role: "status" }, "Choose the run to compare with ", el("code", {}, shortId(id)), " · ",
    el("a", { class: "link", href: `#/runs/${id}` }, "back to it"));
}

function filters(filter, list, signal) {
  const search = el("input", { type: "search", placeholder: "Search: session, agent, model, tag, id   ( / )",
    "aria-label": "Search runs", value: filter.get("q") ?? "" });
  const end = choice(ENDS, filter.get("end"), "How it ended");
  const slower = choice(SLOWER, filter.get("min_wall_s"), "How long it took");
  const since = choice(SINCE, filter.get("since_s"), "When it began");
  const between = days(filter);
  const errors = el("input", { type: "checkbox" });
  errors.checked = filter.get("errors") === "1";
  const apply = () => {
    const next = new URLSearchParams();
    const values = { with: filter.get("with") ?? "", q: search.value.trim(), end: end.value, min_wall_s: slower.value, since_s: since.value,
      ...between.asked(), errors: errors.checked ? "1" : "" };
    for (const [name, value] of Object.entries(values)) if (value) next.set(name, value);
    const query = next.toString();
    if (!next.has("with")) lastQuery = query;
    history.replaceState(null, "", query ? `#/runs?${query}` : "#/runs");
    list.refilter(next).catch((error) => list.tell(error));
  };
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer)); // else it would change the address of the next view
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 150); });
  for (const field of [end, slower, since, ...between.fields, errors]) field.addEventListener("change", apply);
  return el("div", { class: "filters", role: "search" }, search, end, slower, since, between.element, el("label", {}, errors, " with errors"),
    el("span", { class: "grow" }), list.summary);
}

class RunList {
  constructor(filter, signal) {
    this.filter = filter;
    this.signal = signal;
    this.runs = [];
    this.before = null;
    this.isFetching = false;
    this.generation = 0;
    this.summary = el("span", { class: "muted", role: "status" });
    this.base = filter.has("with") ? `#/compare/${filter.get("with")}/` : "#/runs/";
    this.rows = new Rows({ height: 30, render: (i) => runRow(this.runs[i], this.base), onEnd: () => this.fetchMore(),
      role: "group", "aria-label": "Runs" });
    this.nothing = el("div", { hidden: true });
    this.element = el("div", { class: "panel runs" }, runsHead(), this.rows.element, this.nothing);
  }

  async fill() {
    await this.refilter(this.filter);
    const index = this.runs.findIndex((run) => run.id === lastChosen);
    if (index >= 0) this.rows.choose(index);
    this.refresh();
  }

  /** Another filter, another list; an answer to the former one that comes late is not taken. */
  async refilter(filter) {
    this.filter = filter;
    this.generation += 1;
    const { generation } = this;
    const page = await ask(this.path(null), this.signal);
    if (generation === this.generation) this.take(page);
  }

  take(page) {
    this.runs = page.runs;
    this.before = page.before;
    this.rows.chosen = -1;
    this.rows.element.scrollTop = 0;
    this.show();
  }

  path(before) {
    const query = new URLSearchParams(this.filter);
    query.set("limit", PAGE);
    if (before) query.set("before", before);
    return `runs?${query}`;
  }

  async fetchMore() {
    if (!this.before || this.isFetching) return;
    this.isFetching = true;
    const { generation } = this;
    try {
      const page = await ask(this.path(this.before), this.signal);
      if (generation !== this.generation) return;
      this.runs.push(...page.runs);
      this.before = page.before;
      this.show();
    } catch (error) {
      this.tell(error);
    } finally {
      this.isFetching = false;
    }
  }

  tell(error) {
    if (!this.signal.aborted) this.summary.textContent = error.message;
  }

  /** What goes on changes where it stands. New runs come in at the top, unless that would move what is looked at. */
  refresh() {
    let generation = 0;
    const path = () => { generation = this.generation; return this.path(null); };
    follow(path, REFRESH_MS, this.signal, (page) => {
      if (generation === this.generation) this.mix(page);
    });
  }

  mix(page) {
    const known = new Map(this.runs.map((run) => [run.id, run]));
    const newer = new Map(page.runs.map((run) => [run.id, run]));
    const until = page.before === null ? -Infinity : page.runs.at(-1).start_ms; // what is older was not asked for
    const isGone = (run) => run.start_ms > until && !newer.has(run.id);
    const isSame = page.runs.every((run) => known.has(run.id) && isAlike(run, known.get(run.id)));
    if (isSame && !this.runs.some(isGone)) return;
    if (this.rows.element.scrollTop > 0) {
      this.runs = this.runs.map((run) => newer.get(run.id) ?? run);
    } else {
      const chosen = this.runs[this.rows.chosen]?.id;
      const rest = this.runs.filter((run) => !newer.has(run.id) && !isGone(run));
      if (!rest.length) this.before = page.before;
      this.runs = [...page.runs, ...rest];
      this.rows.chosen = this.runs.findIndex((run) => run.id === chosen);
    }
    keepFocus(this.rows.element, () => this.show());
  }

  show() {
    this.rows.reset(this.runs.length);
    this.summary.textContent = this.before ? `first ${plural(this.runs.length, "run")}`
      : plural(this.runs.length, "run");
    this.nothing.hidden = this.runs.length > 0;
    this.rows.element.hidden = !this.runs.length;
    this.nothing.replaceChildren(String(this.filter) ? empty("No run is like that.", "Loosen the filter to see others.")
      : noRuns());
  }

  onKey(key) {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
    if (step) {
      this.rows.choose(Math.max(0, Math.min(this.runs.length - 1, this.rows.chosen + step)));
      lastChosen = this.runs[this.rows.chosen]?.id ?? "";
      return true;
    }
    const run = this.runs[this.rows.chosen];
    if (key === "Enter" && run) location.hash = this.base + run.id;
    if (key === "Escape" && String(this.filter)) location.hash = "#/runs";
    return key === "Enter";
  }
}

/** Whether there is nothing new about a run. */
function isAlike(run, known) {
  return run.num_spans === known.num_spans && run.end === known.end && run.wall_ms === known.wall_ms;
}

export function listRuns(runs) {
  return el("div", { role: "group", "aria-label": "Latest runs" }, runsHead(), runs.map((run) => runRow(run)));
}

const LOST = "It has not ended, and nothing was heard of it for ten minutes: it may have been killed";
const MOODS = { done: "good", failed: "bad", lost: "bad", running: "busy" };

/** How a run ended, or that it goes on, in a word. */
export function runState(run, hasErrors) {
  const title = run.end === "lost" ? LOST : undefined;
  const mood = hasErrors && run.end !== "running" ? "bad" : MOODS[run.end] ?? "";
  return el("span", { class: `state ${mood}`, title }, run.end || (run.num_aborted ? "aborted" : "request"));
}

export function noRuns() {
  return empty("No runs are recorded yet.", "Ask the server something, or let an agent loose: ",
    el("code", {}, 'hotloop run agent.py "…"'),
    ". Runs are recorded unless ", el("code", {}, "--trace off"), " is given.");
}

function runsHead() {
  const names = HEAD.map(([name, kind]) => el("span", { class: kind }, name));
  return el("div", { class: "runs-head", "aria-hidden": "true" }, names);
}

/** What a run was tagged with where it was recorded. */
export function tagsOf(run) {
  return run.tags.split(" ").filter(Boolean).map((tag) => el("span", { class: "tag" }, tag));
}

/** `base` is what stands before the id in the row's address. */
function runRow(run, base = "#/runs/") {
  const tip = () => [run.agent || run.model || "a request", ["run", run.id], ["began", longMoment(run.start_ms)],
    ["model", run.model], ["session", run.session],
    ["cached", `${count(run.num_cached)} of ${count(run.num_prompt)}`], ["recomputed", count(run.num_recomputed)],
    ["for no answer", run.num_lost_prompt ? `${count(run.num_lost_prompt)} prompt, ${count(run.num_lost_output)} output`
      : null],
    ["spans", count(run.num_spans)], ["errors", run.num_errors || null], ["why", run.error], ["aborted", run.num_aborted || null]];
  const none = () => el("span", { class: "muted" }, NONE);
  const withLost = (number, lost) => [short(number), lost ? el("span", { class: "muted" }, ` +${short(lost)}`) : null];
  const state = run.end || (run.num_aborted ? "aborted" : "");
  const label = [run.agent || run.model || "request", state, run.error, moment(run.start_ms), plural(run.num_turns, "turn"),
    `${percent(run.num_cached, run.num_prompt)} cached`].filter(Boolean).join(", ");
  const choose = () => { lastChosen = run.id; };
  return el("a", { class: "run-row", href: base + run.id, "aria-label": label, tip, onclick: choose },
    el("span", { class: "muted rather" }, moment(run.start_ms)),
    el("span", {}, run.agent || el("span", { class: "muted" }, run.model || shortId(run.id)),
      tagsOf(run), run.error && el("span", { class: "why" }, ` ${run.error}`)),
    el("span", { class: "mono wide muted" }, run.session || NONE),
    runState(run, run.num_errors > 0),
    el("span", { class: "num rather" }, count(run.num_turns)),
    el("span", { class: "num" }, run.running_ms === null ? duration(run.wall_ms) : ticking(run.running_ms)),
    el("span", { class: "num wide" }, withLost(run.num_prompt, run.num_lost_prompt)),
    el("span", { class: "share-bar rather" }, stack([["cached", run.num_cached]], run.num_prompt, { class: "thin" }),
      el("span", { class: "num" }, percent(run.num_cached, run.num_prompt))),
    el("span", { class: "num wide" }, run.num_recomputed ? short(run.num_recomputed) : none()),
    el("span", { class: "num wide" }, withLost(run.num_output, run.num_lost_output)),
    el("span", { class: "num wide" }, run.money ? money(run.money) : none()));
}
