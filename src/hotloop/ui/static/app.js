// The dashboard as a whole: which view the address asks for, the theme, the keys. A view is a function of
// (main, parameters, signal) that fills `main`, and may return what it does with a key; the signal ends it.

import { ask, door, keepKey } from "./api.js";
import { el, empty, startTips } from "./dom.js";
import { startTicking } from "./live.js";
import { showCompare } from "./compare.js";
import { showOverview } from "./overview.js";
import { showRun } from "./run/page.js";
import { showRuns } from "./runs.js";
import { showSummary } from "./summary.js";

const main = document.getElementById("main");
const THEMES = ["auto", "light", "dark"];
const THEME = "hotloop-theme";

let leave = new AbortController();
let onKey = () => false;

function parseAddress() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  if (parts[0] === "runs" && parts[1]) return { view: "runs", show: showRun, id: parts[1], query };
  if (parts[0] === "compare" && parts[2]) return { view: "runs", show: showCompare, ids: parts.slice(1, 3), query };
  if (parts[0] === "runs") return { view: "runs", show: showRuns, query };
  if (parts[0] === "summary") return { view: "summary", show: showSummary, query };
  return { view: "overview", show: showOverview, query };
}

async function show() {
  leave.abort();
  leave = new AbortController();
  onKey = () => false;
  const { signal } = leave;
  const address = parseAddress();
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === address.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  try {
    const keys = await address.show(main, address, signal);
    if (!signal.aborted) onKey = keys ?? onKey;
  } catch (error) {
    if (!signal.aborted) main.replaceChildren(el("div", { class: "panel problem" },
      empty("This did not work", error.message)));
  }
}

const GLOBAL_KEYS = {
  "?": () => showHelp(),
  "/": () => search(),
  t: () => turnTheme(),
  1: () => { location.hash = "#/"; },
  2: () => { location.hash = "#/runs"; },
  3: () => { location.hash = "#/summary"; },
};

function search() {
  const field = main.querySelector("input[type=search]");
  if (!field) location.hash = "#/runs?find";
  field?.focus();
  field?.select();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input, select, textarea");
  if (isTyping && event.key === "Escape") event.target.blur();
  if (isTyping || (event.key === "Enter" && event.target.matches("a, button"))) return;
  const isDone = onKey(event.key) || (event.key in GLOBAL_KEYS && (GLOBAL_KEYS[event.key](), true));
  if (isDone) event.preventDefault();
});

const HELP = [
  ["j  k", "next, previous: run or turn"],
  ["Enter", "open the run; look closer at the turn"],
  ["Esc", "back out: of the turn, of the run"],
  ["/", "search runs"],
  ["1  2  3", "overview, runs, summary"],
  ["t", "light, dark, as the system has it"],
  ["?", "this"],
];

function showHelp() {
  const dialog = document.getElementById("help");
  const pairs = HELP.map(([keys, what]) => [el("dt", {}, keys.split("  ").map((key) => [el("kbd", {}, key), " "])),
    el("dd", {}, what)]);
  dialog.replaceChildren(el("h2", { id: "help-title" }, "Keys"), el("dl", {}, pairs));
  dialog.showModal();
}

let asking = null; // one question, however many wait for its answer

door.askKey = (isWrong) => {
  asking ??= new Promise((done) => {
    const dialog = document.getElementById("ask-key");
    const field = el("input", { type: "password", name: "key", autocomplete: "off", required: true,
      "aria-label": "API key" });
    const submit = (event) => {
      event.preventDefault();
      keepKey(field.value.trim());
      asking = null;
      dialog.close();
      done();
    };
    const why = isWrong ? "That key was not taken. Try another."
      : "What is shown here needs the API key this was started with. It is kept for this tab only.";
    dialog.replaceChildren(el("h2", { id: "ask-key-title" }, "API key"), el("p", { class: "muted" }, why),
      el("form", { class: "row", onsubmit: submit }, field, el("button", {}, "Continue")));
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
    field.focus();
  });
  return asking;
};

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
}

function turnTheme() {
  const theme = THEMES[(THEMES.indexOf(localStorage.getItem(THEME) ?? "auto") + 1) % THEMES.length];
  localStorage.setItem(THEME, theme);
  setTheme(theme);
}

const kept = localStorage.getItem(THEME);
setTheme(THEMES.includes(kept) ? kept : "auto");
document.getElementById("theme").addEventListener("click", turnTheme);
document.getElementById("keys").addEventListener("click", showHelp);
document.getElementById("help").addEventListener("click", (event) => event.currentTarget.close());
startTips(document.getElementById("tip"));
startTicking();
addEventListener("hashchange", () => {
  main.focus({ preventScroll: true }); // what had the focus is gone
  show();
});
show();
ask("overview").then((about) => {
  document.getElementById("place").textContent = [about.title, about.model].filter(Boolean).join(" · ");
  document.title = `hotloop · ${about.title}`;
}).catch(() => {});
