// Requests that have ended and were slow: for each a sentence of why, and what can be done.

import { find, make, say, shortId, swatch } from "./words.js";

export class Slow {
  constructor() {
    this.list = find("slow");
    this.known = new Map();
  }

  /** Draw them, the slowest first; `own` has the ids of answers that this page has asked for. */
  draw(live, own) {
    find("slow-empty").hidden = live.slow.length > 0;
    const key = (one) => `${one.id} ${one.room}`, now = new Set(live.slow.map(key));
    for (const [gone, row] of this.known) {
      if (now.has(gone)) continue;
      row.element.remove();
      this.known.delete(gone);
    }
    live.slow.forEach((one, place) => {
      const row = this.known.get(key(one)) ?? newRow(one);
      this.known.set(key(one), row);
      row.yours.hidden = !own.has(one.id);
      const minutes = Math.floor(one.ended_s / 60);
      say(row.ended, `ended ${minutes ? `${minutes} min` : `${Math.floor(one.ended_s)} s`} ago`);
      if (this.list.children[place] !== row.element) this.list.insertBefore(row.element, this.list.children[place] ?? null);
    });
  }

  /** Why the request with this answer's id was slow, if it is among those that are shown. */
  of(id) {
    return [...this.known.values()].find((row) => row.id === id)?.verdict ?? null;
  }
}

function newRow({ id, room, verdict }) {
  const element = make("li"), head = make("p", "slow-head"), ended = make("span", "quiet"), yours = make("span", "yours", "yours");
  const code = make("code", "", shortId({ id, room, choice: 0 }));
  code.title = id;
  head.append(swatch(verdict.phase), make("strong", "", verdict.title), code, yours, ended);
  element.append(head, ...sentences(verdict));
  return { element, ended, yours, id, verdict };
}

/** A verdict as paragraphs: where the time went, and what can be done. */
export function sentences(verdict) {
  const advice = make("p", "advice", `What helps: ${verdict.advice} `), link = make("a", "", "More on this");
  link.href = verdict.more;
  link.target = "_blank";
  link.rel = "noreferrer";
  link.append(make("span", "unseen", ` (${verdict.title}, in the documentation; opens another tab)`));
  advice.append(link);
  return [make("p", "why", verdict.says), advice];
}
