// Requests as swim lanes: a row each, with what it does now in words, and its last 30 s as a strip.

import { PHASES, count, durationText, find, legend, make, say, several, shortId, swatch } from "./words.js";
import { WINDOW_MS } from "./history.js";

const SHOWN_IN_LEGEND = ["waiting", "queued", "computing", "offered", "fetching", "committing", "running", "preempted"];

export class Lanes {
  constructor() {
    this.rows = new Map();
    this.list = find("lanes");
    legend(find("phase-legend"), SHOWN_IN_LEGEND.map((phase) => [swatch(phase), ...PHASES[phase]]));
  }

  /** Draw the lanes; `own` has the ids of answers that this page has asked for. */
  draw(live, history, own) {
    const waiting = live.lanes.filter((lane) => lane.phase === "waiting").length;
    const all = live.lanes.length + live.lanes_left_out;
    let text = all ? `${several(all, "request")} under way` : "";
    if (waiting) text += `, ${count(waiting)} waiting at the gateway`;
    if (live.lanes_left_out) text += `. Shown: ${count(live.lanes.length)}, the oldest and the newest`;
    say(find("lanes-count"), text);
    find("lanes-empty").hidden = history.lanes.size > 0;
    for (const [key, row] of this.rows) {
      if (!history.lanes.has(key)) {
        row.element.remove();
        this.rows.delete(key);
      }
    }
    for (const known of history.lanes.values()) {
      let row = this.rows.get(known.key);
      if (row === undefined) {
        row = newRow();
        this.rows.set(known.key, row);
        this.list.prepend(row.element);
      }
      drawRow(row, known, history.at, own.has(known.lane.id));
    }
  }
}

function newRow() {
  const element = make("li", "lane");
  const name = make("span", "name"), code = make("code"), yours = make("span", "yours", "yours");
  name.append(code, yours);
  const workers = make("span", "workers"), said = make("span", "said"), phase = make("span");
  const mark = swatch("waiting");
  said.append(mark, phase);
  const age = make("span", "number age"), tokens = make("span", "number tokens"), strip = make("div", "strip");
  strip.setAttribute("aria-hidden", "true");
  element.append(name, workers, said, age, tokens, strip);
  return { element, code, yours, workers, said, mark, phase, age, tokens, strip };
}

function drawRow(row, known, now, isOwn) {
  const { lane, over } = known;
  say(row.code, shortId(lane));
  row.code.title = lane.id || "A request of another gateway";
  row.yours.hidden = !isOwn;
  say(row.workers, workersOf(lane));
  row.mark.className = over === null ? `swatch p-${lane.phase}` : "swatch";
  say(row.phase, over === null ? PHASES[lane.phase]?.[0] ?? lane.phase : over.ended ? "Ended" : "Not shown");
  row.said.title = over === null ? PHASES[lane.phase]?.[1] ?? "" : "";
  say(row.age, durationText((over?.at ?? now) - known.came));
  say(row.tokens, lane.id ? `${several(lane.generated_tokens, "token")}` : "");
  row.tokens.title = `${several(lane.prompt_tokens, "prompt token")}, ${count(lane.cached_tokens)} of them cached`;
  row.element.classList.toggle("over", over !== null);
  drawStrip(row.strip, known.parts, now - WINDOW_MS, now);
}

function workersOf(lane) {
  if (!lane.prefill && !lane.decode) return "at the gateway";
  return lane.prefill === lane.decode || !lane.prefill || !lane.decode ? lane.decode || lane.prefill : `${lane.prefill} → ${lane.decode}`;
}

/** Draw phases between two times into a strip. */
export function drawStrip(strip, parts, from, to) {
  const visible = parts.filter((part) => part.to > from);
  while (strip.children.length > visible.length) strip.lastChild.remove();
  while (strip.children.length < visible.length) strip.append(make("i"));
  visible.forEach((part, index) => {
    const piece = strip.children[index];
    const left = Math.max(0, (part.from - from) / (to - from)), right = Math.min(1, (part.to - from) / (to - from));
    const classes = `p-${part.phase}`;
    if (piece.className !== classes) piece.className = classes;
    piece.style.left = `${(100 * left).toFixed(2)}%`;
    piece.style.width = `${(100 * (right - left)).toFixed(2)}%`;
  });
}
