// What goes on: whether answers still come, said in the corner of the dashboard, and times that tick. One timer for all of
// them, whatever is shown.

import { follow } from "./api.js";
import { el } from "./dom.js";
import { duration } from "./format.js";

const TICK_MS = 1000;

/** As `follow`, and the corner of the dashboard says how it goes. */
export async function followLive(path, everyMs, signal, onAnswer, seen) {
  const pulse = document.getElementById("pulse");
  const say = (words, isLost = false) => {
    pulse.textContent = words;
    pulse.classList.toggle("lost", isLost);
  };
  signal.addEventListener("abort", () => say(""));
  const heard = (data) => {
    say("live");
    return onAnswer(data);
  };
  await follow(path, everyMs, signal, heard, () => say("no answer; still trying", true), seen);
  if (!signal.aborted) say("");
}

/** How long something that goes on has lasted: as long as was reported, plus the time since. */
export function ticking(runningMs) {
  return el("span", { "data-since": performance.now() - runningMs }, duration(runningMs));
}

export function startTicking() {
  setInterval(() => {
    if (document.hidden) return;
    for (const node of document.querySelectorAll("[data-since]")) {
      node.textContent = duration(performance.now() - Number(node.dataset.since));
    }
  }, TICK_MS);
}
