// The live page: snapshots come in, and each part draws its share of them. Nothing is asked of any other origin.

import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { demoButtons } from "./demo.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { Lanes } from "./lanes.js";
import { Maps } from "./maps.js";
import { Slow } from "./slow.js";
import { Tables } from "./tables.js";
import { compact, count, duration, find, make, say } from "./words.js";

const KEY = "baton-api-key";
const CACHE_WINDOW_MS = 60_000;
const WAITING = new Set(["waiting", "held", "queued"]);

/** What only two snapshots together can say. */
class Rates {
  constructor() {
    this.kept = [];
  }

  take(live) {
    const prefill = live.workers.filter((worker) => worker.answers && worker.role !== "decode");
    const total = (of, field) => of.reduce((sum, one) => sum + one[field], 0);
    const entry = {
      at: live.at_ms,
      tokens: total(live.gateways, "generated_tokens"),
      queries: total(prefill, "cache_queries"),
      hits: total(prefill, "cache_hits"),
    };
    const last = this.kept.at(-1);
    if (last && (entry.tokens < last.tokens || entry.queries < last.queries || entry.at < last.at)) this.kept = [];
    this.kept.push(entry);
    while (this.kept[0].at < entry.at - CACHE_WINDOW_MS) this.kept.shift();
    const recent = this.kept.find((kept) => kept.at >= entry.at - 2_000), first = this.kept[0];
    const rate = entry.at > recent.at ? (1_000 * (entry.tokens - recent.tokens)) / (entry.at - recent.at) : 0;
    const asked = entry.queries - first.queries;
    const share = asked ? (entry.hits - first.hits) / asked : entry.queries ? entry.hits / entry.queries : null;
    return { rate, share, since: asked ? "last min" : "since start" };
  }
}

function tile(id, number, unit = "") {
  const box = find(id), written = `${number} ${unit}`;
  if (box.dataset.written === written) return;
  box.dataset.written = written;
  box.replaceChildren(number, ...(unit ? [make("small", "", unit)] : []));
}

function median({ p50_ms: ms }) {
  const [number, unit] = duration(ms);
  return [number, unit ? `${unit} median` : ""];
}

class Page {
  constructor() {
    this.history = new History();
    this.rates = new Rates();
    this.before = null;
    this.paused = false;
    const key = find("key");
    key.value = sessionStorage.getItem(KEY) ?? "";
    this.key = () => key.value.trim();
    this.lanes = new Lanes();
    this.slow = new Slow();
    this.maps = new Maps();
    this.charts = new Charts();
    this.tables = new Tables(demoButtons(this.key, (text) => this.announce(text)));
    this.chat = new Chat({ key: this.key, history: this.history, slow: this.slow, announce: (text) => this.announce(text) });
    this.feed = new Feed({ key: this.key, onSnapshot: (live) => this.take(live), onState: (kind, why) => this.link(kind, why) });
    key.addEventListener("change", () => {
      sessionStorage.setItem(KEY, this.key());
      this.feed.start();
    });
    find("pause").addEventListener("click", () => this.pause(!this.paused));
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.feed.stop(); // nobody looks
      else if (!this.paused) this.feed.start();
    });
    this.feed.start();
  }

  pause(on) {
    this.paused = on;
    find("pause").setAttribute("aria-pressed", String(on));
    if (on) {
      this.feed.stop();
      say(find("link"), "Paused");
    } else {
      this.feed.start();
    }
  }

  take(live) {
    this.history.take(live);
    const waiting = live.lanes.filter((lane) => WAITING.has(lane.phase)).length;
    const { rate, share, since } = this.rates.take(live);
    tile("tile-running", count(live.lanes.length + live.lanes_left_out), "requests");
    tile("tile-waiting", count(waiting));
    tile("tile-rate", compact(rate), "tokens/s");
    tile("tile-first", ...median(live.first));
    tile("tile-between", ...median(live.between));
    tile("tile-cache", share === null ? "–" : `${Math.round(100 * share)} %`, share === null ? "" : since);
    say(find("model"), live.model);
    say(find("version"), live.version);
    const ready = find("ready");
    ready.dataset.state = live.ready.ready ? "good" : "bad";
    say(ready, live.ready.ready ? "Ready" : "Not ready");
    this.notice(live.ready.ready ? "" : `Requests cannot be served: ${live.ready.why}`);
    say(find("link"), "Live");
    this.tell(live);
    this.lanes.draw(live, this.history, this.chat.own);
    this.slow.draw(live, this.chat.own);
    this.maps.draw(live);
    this.charts.draw(live);
    this.tables.draw(live);
    document.body.dataset.snapshots = live.number;
  }

  /** Say aloud what has changed, and only that. */
  tell(live) {
    const now = new Map(live.workers.map((worker) => [worker.name, worker.answers ? worker.draining ? "drains" : "serves" : "does not answer"]));
    if (this.before) {
      const said = [];
      if (this.before.ready !== live.ready.ready) said.push(live.ready.ready ? "The service is ready." : "The service is not ready.");
      for (const [name, state] of now) if (this.before.workers.get(name) !== state) said.push(`${name} ${state}.`);
      for (const name of this.before.workers.keys()) if (!now.has(name)) said.push(`${name} has left.`);
      if (said.length) this.announce(said.join(" "));
    }
    this.before = { ready: live.ready.ready, workers: now };
  }

  link(kind, why) {
    say(find("link"), kind === "lost" ? "Reconnecting" : "");
    const ready = find("ready");
    ready.dataset.state = "unknown";
    say(ready, kind === "lost" ? "Connection lost" : "Needs a key");
    this.notice(why);
    if (kind === "key") find("key-box").open = true;
  }

  notice(text) {
    const box = find("notice");
    box.hidden = !text;
    say(box, text);
  }

  announce(text) {
    find("announcer").textContent = text;
  }
}

new Page();
