// Asking the page's own API. The key, where one is needed, is typed once and kept for this tab only; it is never in an
// address.

const ROOT = new URL("../api/", import.meta.url);
const KEY = "hotloop-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Set by the page: asks the user for the key, and resolves when there is one. */
export const door = { askKey: async () => {} };

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** GETs JSON. Raises Refused where the answer is no; where it is "no key", asks again once the user has given one. */
export async function ask(path, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const answer = await fetch(new URL(path, ROOT), { headers, signal, credentials: "omit", cache: "no-store" });
    if (answer.ok) return answer.json();
    if (answer.status !== 401) throw await refusal(answer);
    if (key === sessionStorage.getItem(KEY)) await door.askKey(Boolean(key)); // else another was given meanwhile
  }
}

async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  return new Refused(answer.status, said?.error?.message ?? `the server answered ${answer.status}`);
}

/** Asks again and again until the signal: `everyMs` after the last answer, and only while the page can be seen. What is
 * asked, `path()` says each time. */
export async function follow(path, everyMs, signal, onAnswer, onTrouble = () => {}) {
  while (!signal.aborted) {
    try {
      onAnswer(await ask(path(), signal));
    } catch (error) {
      if (signal.aborted) return;
      onTrouble(error);
    }
    await pause(everyMs, signal);
    if (document.hidden) await untilSeen(signal);
  }
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}

function untilSeen(signal) {
  return new Promise((done) => {
    document.addEventListener("visibilitychange", done, { once: true, signal });
    signal.addEventListener("abort", done, { once: true });
  });
}
