// A long list of which only what can be seen exists. Rows are of one height and made by `render(index)`.

import { el } from "./dom.js";

const SPARE = 8; // rows beyond either edge, so that a quick scroll shows no gap

export class Rows {
  constructor({ height, render, onEnd = () => {}, ...attributes }) {
    this.height = height;
    this.render = render;
    this.onEnd = onEnd;
    this.count = 0;
    this.chosen = -1;
    this.shown = new Map();
    this.space = el("div", { class: "space" });
    this.element = el("div", { ...attributes, class: `rows ${attributes.class ?? ""}`, tabindex: "-1" }, this.space);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** There are now `count` rows, and those made before are out of date. */
  reset(count) {
    this.count = count;
    this.space.style.height = `${count * this.height}px`;
    this.shown.clear();
    this.space.replaceChildren();
    this.draw();
  }

  choose(index) {
    this.mark(false);
    this.chosen = index;
    this.mark(true);
    const top = index * this.height;
    const view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    view.scrollTop = Math.max(view.scrollTop, top + this.height - view.clientHeight);
    this.draw();
  }

  mark(isChosen) {
    const row = this.shown.get(this.chosen);
    row?.classList.toggle("chosen", isChosen);
    if (isChosen) row?.setAttribute("aria-current", "true");
    else row?.removeAttribute("aria-current");
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - SPARE);
    const last = Math.min(this.count,
      Math.ceil((this.element.scrollTop + this.element.clientHeight) / this.height) + SPARE);
    for (const [index, row] of this.shown) {
      if (index >= first && index < last) continue;
      row.remove();
      this.shown.delete(index);
    }
    for (let index = first; index < last; index++) if (!this.shown.has(index)) this.add(index);
    this.mark(true);
    if (last === this.count && this.count) this.onEnd();
  }

  add(index) {
    const row = this.render(index);
    row.style.top = `${index * this.height}px`;
    this.shown.set(index, row);
    this.space.append(row);
  }
}
