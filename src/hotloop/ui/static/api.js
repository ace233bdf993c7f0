// Asking the dashboard's own API. The key, where one is needed, is typed once and kept for this tab only; it is never in an
// address.

const ROOT = new URL("../api/", import.meta.url);
const KEY = "hotloop-key";
const REST = 4; // times as long as an answer took: who answers has other things to do
const MAX_REST_MS = 5000;

/** Set by the dashboard: asks the user for the key, and resolves when there is one. */
export const door = { askKey: async () => {} };

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** GETs JSON. Throws where the answer is no; where it is "no key", asks again once the user has given one. What
 * was answered is noted in `seen`, and whoever brings that along is told null for as long as it is the same. */
export async function ask(path, signal, seen = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    if (seen.tag) headers["If-None-Match"] = seen.tag;
    const answer = await fetch(new URL(path, ROOT), { headers, signal, credentials: "omit", cache: "no-store" });
    if (answer.status === 304) return null;
    if (answer.ok) {
      const data = await answer.json();
      seen.tag = answer.headers.get("ETag");
      return data;
    }
    if (answer.status !== 401) throw await refusal(answer);
    if (key === sessionStorage.getItem(KEY)) await door.askKey(Boolean(key)); // else another was given meanwhile
  }
}

async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  return new Error(said?.error?.message ?? `the server answered ${answer.status}`);
}

/** Asks again and again until the signal, or until `onAnswer` says false: `everyMs` after the last answer, later if
 * that took long, and only while the dashboard can be seen. What is asked, `path()` says each time; `seen` as in `ask`. */
export async function follow(path, everyMs, signal, onAnswer, onTrouble = () => {}, seen = {}) {
  while (!signal.aborted) {
    const began = performance.now();
    let data;
    try {
      data = await ask(path(), signal, seen);
    } catch (error) {
      if (signal.aborted) return;
      onTrouble(error);
    }
    if (data !== undefined && onAnswer(data) === false) return;
    const rest = Math.min(REST * (performance.now() - began), MAX_REST_MS);
    await pause(Math.max(everyMs, rest), signal);
    if (document.hidden && !signal.aborted) await untilSeen(signal);
  }
}

function pause(ms, signal) {
  return wait(signal, (done) => {
    const timer = setTimeout(done, ms);
    return () => clearTimeout(timer);
  });
}

function untilSeen(signal) {
  return wait(signal, (done) => {
    document.addEventListener("visibilitychange", done);
    return () => document.removeEventListener("visibilitychange", done);
  });
}

/** Until `begin(done)` calls `done`, or the signal; either way what was begun is undone, and no listener is left. */
function wait(signal, begin) {
  return new Promise((resolve) => {
    const done = () => {
      undo();
      signal.removeEventListener("abort", done);
      resolve();
    };
    const undo = begin(done);
    signal.addEventListener("abort", done);
  });
}
