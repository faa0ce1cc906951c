// The words and numbers of the page: what phases and pages are called, and how figures are written.

export const PHASES = {
  waiting: ["Waiting", "At the gateway, for its turn or for workers with room."],
  held: ["Held back", "At the gateway: its last worker died while it was there."],
  queued: ["Queued", "At its worker, behind other prompts or for memory."],
  resuming: ["Resuming", "Prefill copies back where an earlier prompt has ended."],
  borrowing: ["Fetching back", "Prefill reads what decode has cached of the prompt."],
  computing: ["Computing", "The prompt is being computed."],
  offered: ["Offered", "The prompt is computed; decode has no memory for it yet."],
  fetching: ["KV transfer", "Decode reads the KV cache of the prompt from prefill."],
  committing: ["Committing", "Decode has read it, and its ranks agree on that."],
  running: ["Running", "Tokens are generated."],
  preempted: ["Preempted", "Its memory was given to other requests; it goes on when there is some again."],
  ending: ["Ending", "What it held is being freed."],
  // of a request that has ended, as its gateway tells
  awaits_decode: ["Waits for decode", "Its first token is there; decode has no memory for it yet."],
  messages: ["Messages", "On their way, and until somebody looked at them."],
  unknown: ["Unknown", "On a worker that was lost."],
};

/** What workers tell apart and the page does not: a room that has given way to others, or comes back from that;
 * and one that has memory and waits behind other prompts. */
export const SHOWN_AS = { offloading: "preempted", offloaded: "preempted", restoring: "preempted", awaits_turn: "queued" };

export const PAGES = {
  held: ["Other requests", "Held by requests that have no lane here."],
  shared: ["Cached, in use", "Cached state that requests are using."],
  cached: ["Cached", "Cached state that nobody uses now; it is given up when memory is needed."],
  free: ["Free", "Holds nothing."],
};

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A whole number, with separators. */
export const count = (n) => plain.format(Math.round(n));

/** A number that may be large, in few characters. */
export const compact = (n) => (Math.abs(n) < 10_000 ? count(n) : short.format(n));

/** A number and a noun. */
export const several = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A duration as [number, unit]; ["–", ""] of null. */
export function duration(ms) {
  if (ms === null || ms === undefined) return ["–", ""];
  if (ms < 10) return [ms.toFixed(1), "ms"];
  if (ms < 1_000) return [ms.toFixed(0), "ms"];
  if (ms < 60_000) return [(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1), "s"];
  return [(ms / 60_000).toFixed(1), "min"];
}

export const durationText = (ms) => duration(ms).filter(Boolean).join(" ");

/** The end of an answer's id, which is enough to tell requests apart. */
export function shortId(lane) {
  return lane.id ? `…${lane.id.slice(-8)}${lane.choice ? `/${lane.choice}` : ""}` : `room ${lane.room}`;
}

/** An element with classes and text. */
export function make(tag, classes = "", text = "") {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
}

/** Set the text of an element, if it differs: an unchanged one is not laid out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const find = (id) => document.getElementById(id);

/** Fill a legend with [class or painter, name, meaning]. */
export function legend(list, entries) {
  list.replaceChildren(...entries.map(([swatch, name, meaning]) => {
    const item = make("li");
    item.title = meaning;
    item.append(swatch, make("span", "", name));
    return item;
  }));
}

/** A square in the colour and pattern of a phase. */
export function swatch(phase) {
  const made = make("span", `swatch p-${phase}`);
  made.setAttribute("aria-hidden", "true");
  return made;
}
