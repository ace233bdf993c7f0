// Elements, made one way. Text is only ever set as text: nothing here, and nothing that uses it, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "tip") tips.set(node, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const isThere = (child) => child !== null && child !== undefined && child !== false;
  node.append(...children.flat(Infinity).filter(isThere).map(asNode));
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** An element: `el("td", { class: "num" }, 3)`. `onclick` and the like listen; `tip()` gives a title and its facts. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Other children for an element that stays. */
export function refill(node, ...children) {
  node.replaceChildren();
  return fill(node, {}, children);
}

/** The same as `el`, for a drawing. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** A rectangle, at least `least` wide so that what is short can still be seen. */
export function bar(kind, x, y, width, height, more = {}, least = 1) {
  const place = { x, y, width: Math.max(width, least), height };
  return svg("rect", { ...more, ...place, class: `mark ${kind} ${more.class ?? ""}` });
}

/** A horizontal stack of shares of `total`; what is missing from it stays empty. */
export function stack(shares, total, attributes = {}) {
  const pieces = shares.filter(([, amount]) => amount > 0).map(([kind, amount, tip]) => {
    const piece = el("i", { class: kind, tip });
    piece.style.width = `${(100 * amount) / (total || 1)}%`;
    return piece;
  });
  return el("div", { ...attributes, class: `stack ${attributes.class ?? ""}` }, pieces);
}

export function legend(entries) {
  const keys = entries.map(([kind, label]) => el("span", { class: "key" }, swatch(kind), label));
  return el("div", { class: "legend" }, keys);
}

export function swatch(kind) {
  return el("span", { class: `swatch ${kind}` });
}

export function tile(label, figure, ...note) {
  return el("div", { class: "tile" }, el("div", { class: "label" }, label), el("div", { class: "figure" }, figure),
    el("div", { class: "note" }, note));
}

export function panel(title, note, ...children) {
  return el("section", { class: "panel" }, el("header", {}, el("h2", {}, title), el("span", { class: "muted" }, note)),
    children);
}

/** What stands where nothing is: why, and what to do about it. */
export function empty(title, ...rest) {
  return el("p", { class: "empty" }, el("strong", {}, title), rest);
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.map(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
}

/** Redraws what is in a place. A link in it that had the focus has it still, if it is still there. */
export function keepFocus(place, redraw) {
  const { activeElement } = document;
  const address = place.contains(activeElement) && activeElement.getAttribute("href");
  redraw();
  if (!address) return;
  const links = [...place.querySelectorAll("a")];
  links.find((link) => link.getAttribute("href") === address)?.focus({ preventScroll: true });
}

const tips = new WeakMap();

/** One tip for the whole page: it follows the pointer and tells what the element under it was given. */
export function startTips(tip) {
  const hide = () => { tip.hidden = true; };
  document.addEventListener("pointermove", (event) => {
    let node = event.target;
    while (node && !tips.has(node)) node = node.parentNode;
    if (!node) return hide();
    const [title, ...pairs] = tips.get(node)();
    tip.replaceChildren(el("b", {}, title), facts(pairs));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    const isBelow = event.clientY + 18 + height <= innerHeight;
    tip.style.top = `${Math.max(4, isBelow ? event.clientY + 18 : event.clientY - height - 10)}px`;
  });
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  addEventListener("hashchange", hide);
}
