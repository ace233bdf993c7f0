// The run that is shown, as far as it is known, and which turn of it is looked at. Panels draw it now and whenever it
// has grown; what they are made of stays, so that focus, scroll and choice stay as well.

export class Shown {
  constructor(run) {
    this.run = run;
    this.place = -1; // of the turn that is chosen; -1 is none yet
    this.drawers = [];
    this.listeners = [];
  }

  /** Calls `draw(run)` now, and again when there is more of the run. */
  draw(draw) {
    this.drawers.push(draw);
    draw(this.run);
  }

  /** Calls `listener()` when another turn is chosen. */
  listen(listener) {
    this.listeners.push(listener);
  }

  choose(place) {
    this.place = Math.max(0, Math.min(this.run.turns.length - 1, place));
    for (const listener of this.listeners) listener();
  }

  /** The same run, later. The turn that was chosen is so still, wherever it stands now. */
  update(run) {
    const chosen = this.run.turns[this.place]?.id;
    this.run = run;
    this.place = run.turns.findIndex((turn) => turn.id === chosen);
    for (const draw of this.drawers) draw(run);
  }
}
