// Fields of a filter. What they ask for is part of the address.

import { el } from "./dom.js";

export function choice(options, chosen, label) {
  return el("select", { "aria-label": label },
    options.map(([value, text]) => el("option", { value, selected: value === (chosen ?? "") }, text)));
}

/** From one day to another, both included, by the clock of whoever looks. */
export function days(given) {
  const day = (name, shift) => given.get(name) ? isoDay(new Date((Number(given.get(name)) + shift) * 1000)) : "";
  const from = el("input", { type: "date", "aria-label": "From day", value: day("from_s", 0) });
  const to = el("input", { type: "date", "aria-label": "To day", value: day("to_s", -1) });
  return {
    fields: [from, to],
    element: el("span", { class: "days" }, from, " to ", to),
    asked: () => ({ from_s: midnight(from.value, 0), to_s: midnight(to.value, 1) }),
  };
}

function isoDay(date) {
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** Of a day, or of the one after it, in unix time; empty for no day, and for one that is still being typed. */
function midnight(day, later) {
  if (!day) return "";
  const [year, month, date] = day.split("-").map(Number);
  return year < 1971 ? "" : String(new Date(year, month - 1, date + later).getTime() / 1000);
}
