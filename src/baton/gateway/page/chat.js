// A conversation with the model, and where the time of each answer went, as measured here.

import { bearer, events } from "./feed.js";
import { drawStrip } from "./lanes.js";
import { sentences } from "./slow.js";
import { PHASES, SHOWN_AS, count, durationText, find, make, several, swatch } from "./words.js";

const DRAW_MS = 50;

export class Chat {
  /** key: returns the API key; history: of lanes; slow: knows why requests were slow; announce: tells a screen
   * reader something */
  constructor({ key, history, slow, announce }) {
    Object.assign(this, { key, history, slow, announce });
    this.own = new Set();
    this.messages = [];
    [this.drawing, this.undrawn] = [null, ""]; // the timer, and what has come of an answer since the last drawing
    this.model = undefined;
    this.abort = null;
    this.talk = find("talk");
    find("chat-form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    find("chat-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    find("chat-stop").addEventListener("click", () => this.abort?.abort());
    find("chat-new").addEventListener("click", () => this.reset());
  }

  reset() {
    this.abort?.abort();
    this.messages = [];
    this.talk.replaceChildren(find("talk-empty") ?? this.empty);
    find("chat-text").focus();
  }

  async send() {
    const text = find("chat-text").value.trim();
    if (!text || this.abort) return;
    find("chat-text").value = "";
    this.empty ??= find("talk-empty");
    this.empty.remove();
    this.messages.push({ role: "user", content: text });
    this.say("asked", "You", text);
    const turn = this.say("answered", "Model", "");
    this.abort = new AbortController();
    this.busy(true);
    const measured = { sent: performance.now(), first: null, last: null, id: null, usage: null, text: "" };
    try {
      await this.ask(turn, measured, this.abort.signal);
      this.messages.push({ role: "assistant", content: measured.text });
    } catch (error) {
      this.messages.pop();
      turn.classList.add("failed");
      turn.lastChild.textContent += this.abort.signal.aborted ? " (stopped)" : `${measured.text ? " " : ""}${error.message}`;
    }
    this.abort = null;
    this.busy(false);
    if (measured.first !== null) this.account(turn, measured);
    this.announce(turn.classList.contains("failed") ? "The answer has failed." : "The answer is complete.");
  }

  async ask(turn, measured, signal) {
    const most = Number(find("chat-tokens").value) || 128;
    const answer = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...bearer(this.key()) },
      body: JSON.stringify({ messages: this.messages, max_tokens: most, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    if (!answer.ok) throw new Error(await reason(answer));
    try {
      for await (const data of events(answer.body)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        if (chunk.id) { measured.id = chunk.id; this.own.add(chunk.id); }
        measured.usage = chunk.usage ?? measured.usage;
        const { content, reasoning, reasoning_content: thought } = chunk.choices?.[0]?.delta ?? {};
        const piece = content || reasoning || thought;
        if (!piece) continue;
        measured.last = performance.now();
        measured.first ??= measured.last;
        measured.text += content ?? "";
        this.append(turn, piece);
      }
    } finally {
      this.draw(turn);
    }
  }

  /** Below the answer: what was measured here, and the phases that snapshots have shown. */
  account(turn, measured) {
    const { sent, first, last, usage } = measured, box = make("div", "spent");
    let text = `First token after ${durationText(first - sent)}`;
    if (usage) {
      const later = usage.completion_tokens - 1, cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      text += later > 0 && last > first
        ? `, then ${several(later, "token")} in ${durationText(last - first)}: ${(later / ((last - first) / 1_000)).toFixed(1)} tokens per second.`
        : ".";
      text += ` ${count(cached)} of ${several(usage.prompt_tokens, "prompt token")} ${cached === 1 ? "was" : "were"} cached.`;
    }
    box.append(make("p", "", text), strip([{ phase: "computing", from: sent, to: first }, { phase: "running", from: first, to: last }]));
    turn.append(box);
    setTimeout(() => this.phases(box, measured.id), 700); // when one more snapshot has come
    this.follow();
  }

  /** What the gateway says of the request; from another machine, what snapshots have shown of it. */
  async phases(box, id) {
    const told = await this.told(id), parts = told?.parts ?? this.history.phasesOf(id);
    const verdict = told?.verdict ?? this.slow.of(id);
    if (verdict) box.prepend(...sentences(verdict));
    if (parts.length) {
      drawStrip(box.querySelector(".strip"), parts, parts[0].from, parts.at(-1).to);
      const list = make("ul");
      for (const { phase, where, took } of sums(parts)) {
        const item = make("li");
        const text = `${PHASES[phase]?.[0] ?? phase} ${durationText(took)}${where ? ` (${where})` : ""}`;
        item.append(swatch(phase), make("span", "", text));
        list.append(item);
      }
      box.append(list);
    }
    const seen = parts.length ? "Phases as seen in the service, twice a second; shorter ones are missing." : "It was over between two looks at the service, which come twice a second.";
    box.append(make("p", "quiet", told ? `As its gateway and workers say; baton trace ${id} draws it.` : seen));
    this.follow();
  }

  /** What the gateway knows of a request that has ended; null if it does not tell. It knows when all workers have
   * let it go. */
  async told(id) {
    let answer = await fetch(`debug/requests/${id}`);
    for (let again = 0; answer.status === 404 && again < 3; again += 1) {
      await new Promise((done) => { setTimeout(done, 700); });
      answer = await fetch(`debug/requests/${id}`);
    }
    if (!answer.ok) return null;
    const { path, verdict } = await answer.json();
    const parts = path.map(({ name, where, start_us, end_us }) => (
      { phase: SHOWN_AS[name] ?? name, where, from: start_us / 1_000, to: end_us / 1_000 }
    ));
    return { parts, verdict };
  }

  say(kind, who, text) {
    const turn = make("div", `turn ${kind}`);
    turn.append(make("span", "who", who), make("span", "text", text));
    this.talk.append(turn);
    this.follow();
    return turn;
  }

  /** Tokens come by the hundred a second, and each drawing lays out the whole answer: a click would wait for them. */
  append(turn, text) {
    this.undrawn += text;
    this.drawing ??= setTimeout(() => this.draw(turn), DRAW_MS);
  }

  draw(turn) {
    clearTimeout(this.drawing);
    const atEnd = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 60;
    turn.querySelector(".text").textContent += this.undrawn;
    [this.drawing, this.undrawn] = [null, ""];
    if (atEnd) this.follow();
  }

  follow() {
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  busy(on) {
    find("chat-send").disabled = on;
    find("chat-stop").hidden = !on;
  }
}

/** How long each phase took in all, in the order in which they began. */
function sums(parts) {
  const found = new Map();
  for (const { phase, where, from, to } of parts) {
    const key = `${phase} ${where}`, sum = found.get(key) ?? { phase, where, took: 0 };
    found.set(key, { ...sum, took: sum.took + to - from });
  }
  return [...found.values()];
}

/** What was measured as a strip: the time to the first token, and the time of the others. */
function strip(parts) {
  const made = make("div", "strip");
  made.setAttribute("aria-hidden", "true");
  drawStrip(made, parts, parts[0].from, parts.at(-1).to);
  return made;
}

async function reason(answer) {
  if (answer.status === 401) return "This service needs an API key: enter one under “API key”.";
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The gateway answered ${answer.status}.`;
  }
}
