// Workers, pairs and gateways as tables.

import { compact, count, find, make, say } from "./words.js";

/** Fill a table's body with rows of cells. Rows and cells stay where they are and only what differs is
 * written, so that a button keeps the focus. */
function fill(body, rows) {
  while (body.rows.length > rows.length) body.lastChild.remove();
  while (body.rows.length < rows.length) body.append(make("tr"));
  rows.forEach((cells, index) => {
    const row = body.rows[index];
    while (row.cells.length > cells.length) row.lastChild.remove();
    cells.forEach((cell, column) => fillCell(row.cells[column] ?? row.appendChild(newCell(column)), cell));
  });
}

function newCell(column) {
  const made = make(column ? "td" : "th");
  if (!column) made.scope = "row";
  return made;
}

/** A cell has a text, which also says whether it has changed, and may be a mark, code or an element. */
function fillCell(box, { text, state = "", code = false, element = null, class: classes = "" }) {
  const written = `${text}|${state}`;
  if (box.dataset.written === written) return;
  box.dataset.written = written;
  box.className = classes;
  if (element) {
    box.replaceChildren(element());
  } else if (state) {
    const mark = make("span", "mark", text);
    mark.dataset.state = state;
    box.replaceChildren(mark);
  } else if (code) {
    box.replaceChildren(make("code", "", text));
  } else {
    box.textContent = text;
  }
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
      ...(demo ? [{ text: `${worker.name}, ${worker.role}`, element: () => this.demo(worker) }] : []),
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
