// Numbers as people read them. Pure.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const NONE = "–";

export function count(number) {
  return number === null || number === undefined ? NONE : whole.format(number);
}

/** 1,234 stays; 12,345 is 12.3k; for where room is short. */
export function short(number) {
  if (number === null || number === undefined) return NONE;
  if (number < 10_000) return whole.format(Math.round(number));
  return number < 1e6 ? `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`
    : `${(number / 1e6).toFixed(number < 1e7 ? 2 : 1)}M`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms === 0) return "0";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${pad(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h ${pad(Math.floor(seconds / 60) % 60)}m`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}

/** A share as a percentage; nothing of nothing is not a share. */
export function percent(part, all) {
  if (!all) return NONE;
  const share = (100 * part) / all;
  return `${share.toFixed(share > 0 && share < 9.95 ? 1 : 0)}%`;
}

export function rate(perSecond) {
  return perSecond === null ? NONE : perSecond < 10 ? perSecond.toFixed(1) : short(perSecond);
}

export function money(amount) {
  if (amount === null || amount === undefined) return NONE;
  return `$${amount.toFixed(amount < 0.01 ? 5 : amount < 1 ? 4 : 2)}`;
}

/** Today's times as times, others with their day. */
export function moment(unixMs) {
  const date = new Date(unixMs);
  return date.toDateString() === new Date().toDateString() ? clock.format(date)
    : `${day.format(date)} ${clock.format(date).slice(0, 5)}`;
}

export function longMoment(unixMs) {
  return full.format(new Date(unixMs));
}

export function shortId(id) {
  return id.slice(0, 8);
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
