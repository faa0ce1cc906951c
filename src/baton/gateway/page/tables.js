// Workers, pairs and gateways as tables.

import { compact, count, find, make, say } from "./words.js";

/** Fill a table's body with rows of cells; a cell is a text, or an element. */
function fill(body, rows) {
  const written = JSON.stringify(rows.map((cells) => cells.map(({ text, state }) => [text, state])));
  if (body.dataset.written === written) return;
  body.dataset.written = written;
  body.replaceChildren(...rows.map((cells) => {
    const row = make("tr");
    row.append(...cells.map((cell, index) => {
      const made = make(index ? "td" : "th", cell.class ?? "");
      if (!index) made.scope = "row";
      if (cell.state) {
        const mark = make("span", "mark", cell.text);
        mark.dataset.state = cell.state;
        made.append(mark);
      } else if (cell.code) {
        made.append(make("code", "", cell.text));
      } else if (cell.element) {
        made.append(cell.element());
      } else {
        made.textContent = cell.text;
      }
      return made;
    }));
    return row;
  }));
}

const number = (n) => ({ text: compact(n), class: "number" });

export class Tables {
  /** `demo` makes the buttons that break a worker. */
  constructor(demo) {
    this.demo = demo;
  }

  draw(live) {
    for (const head of document.querySelectorAll(".demo-only")) head.hidden = !live.demo;
    fill(find("workers"), live.workers.map((worker) => this.worker(worker, live.demo)));
    say(find("workers-note"), live.workers_left_out ? `${count(live.workers_left_out)} more are not shown` : "");
    fill(find("pairs"), live.pairs.length ? live.pairs.map(pair) : [[{ text: "There is none yet." }]]);
    say(find("pairs-note"), live.pairs_left_out ? `${count(live.pairs_left_out)} more are not shown` : "");
    fill(find("gateways"), live.gateways.map((gateway) => [
      { text: gateway.asked ? `${gateway.name} (this one)` : gateway.name },
      ...[gateway.under_way, gateway.queued, gateway.ended, gateway.failed, gateway.prompt_tokens, gateway.generated_tokens].map(number),
    ]));
  }

  worker(worker, demo) {
    const state = !worker.answers ? ["Does not answer", "bad"] : worker.draining ? ["Drains", "warn"] : ["Serves", "good"];
    const rooms = Object.entries(worker.rooms).map(([name, n]) => `${count(n)} ${name}`).join(", ");
    const [used, total] = usage(worker.pages);
    const hits = worker.cache_queries ? `${Math.round((100 * worker.cache_hits) / worker.cache_queries)} %` : "–";
    return [
      { text: worker.name },
      { text: worker.role || "–" },
      { text: state[0], state: state[1] },
      { text: rooms || (worker.answers ? "none" : "–") },
      { text: total ? `${count(used)} of ${compact(total)}` : "–", class: "number" },
      { text: hits, class: "number" },
      { text: worker.ranks.map((rank) => `${rank.rank}: ${rank.boot}`).join("  ") || "–", code: true },
      ...(demo ? [{ text: worker.role, element: () => this.demo(worker) }] : []),
    ];
  }
}

function usage(pages) {
  let used = 0, total = 0;
  for (const states of Object.values(pages)) {
    used += states.total - states.free - (states.cached ?? 0);
    total += states.total;
  }
  return [used, total];
}

function pair({ prefill, decode, fabric, why }) {
  const alone = prefill === decode;
  return [
    { text: prefill },
    { text: alone ? "the same" : decode },
    why ? { text: "Not used", state: "bad" } : { text: "Used", state: "good" },
    { text: fabric || "–" },
    { text: why || "–", class: "wrap" },
  ];
}
