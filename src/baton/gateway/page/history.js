// What snapshots have said of each request: its phases, and when they began.

export const WINDOW_MS = 30_000;
export const GAP_MS = 5_000;
const MOST = 400;

/** Lanes by key, the newest last; a lane stays for 30 s after its request has ended. */
export class History {
  constructor() {
    this.lanes = new Map();
    this.at = 0;
  }

  /** Take a snapshot. */
  take(live) {
    // nobody has looked for a while, or another gateway answers, whose clock is its own
    if (live.at_ms < this.at || live.at_ms - this.at > GAP_MS) {
      this.lanes.clear();
      this.at = 0;
    }
    const before = this.at || live.at_ms - 500;
    this.at = live.at_ms;
    const seen = new Set();
    for (const lane of live.lanes) {
      const key = lane.id ? `${lane.id}/${lane.choice}` : lane.room;
      seen.add(key);
      const known = this.lanes.get(key) ?? this.begin(key, Math.max(before, live.at_ms - lane.age_ms), live.at_ms - lane.age_ms);
      extend(known, lane.phase, live.at_ms);
      known.lane = lane;
      known.over = null;
    }
    for (const [key, known] of this.lanes) {
      if (!seen.has(key) && known.over === null) known.over = { at: live.at_ms, ended: live.lanes_left_out === 0 };
      if (known.over !== null && known.over.at < live.at_ms - WINDOW_MS) this.lanes.delete(key);
    }
    for (const key of this.lanes.keys()) {
      if (this.lanes.size <= MOST) break;
      if (!seen.has(key)) this.lanes.delete(key);
    }
  }

  begin(key, seenFrom, came) {
    const known = { key, came, seenFrom, parts: [], lane: null, over: null };
    this.lanes.set(key, known);
    return known;
  }

  /** The phases of the request with this answer's id, as [phase, from, to], or none. */
  phasesOf(id) {
    return this.lanes.get(`${id}/0`)?.parts ?? [];
  }
}

function extend(known, phase, at) {
  const last = known.parts.at(-1);
  if (last?.phase === phase) {
    last.to = at;
  } else {
    known.parts.push({ phase, from: last ? last.to : known.seenFrom, to: at });
    while (known.parts.length > 1 && known.parts[0].to < at - 2 * WINDOW_MS) known.parts.shift();
  }
}
