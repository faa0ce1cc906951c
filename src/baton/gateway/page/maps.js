// The pages of each worker as a map: first those of requests, one after the other, then cache, then free ones.

import { PAGES, PHASES, count, find, legend, make, say, several, swatch } from "./words.js";

const CELLS = 288, CELL = 12, GAP = 2;
const HOLDING = ["computing", "offered", "fetching", "committing", "running", "preempted"];

export class Maps {
  constructor() {
    this.known = new Map();
    this.box = find("maps");
    this.drawn = [];
    this.makeLegend();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.makeLegend(); this.again(); });
    addEventListener("resize", () => this.again());
  }

  makeLegend() {
    const painted = Object.entries(PAGES).map(([kind, words]) => [paintedSwatch(kind), ...words]);
    legend(find("page-legend"), [...HOLDING.map((phase) => [swatch(phase), ...PHASES[phase]]), ...painted]);
  }

  again() {
    for (const { canvas, cells } of this.drawn) paint(canvas, cells);
  }

  /** Draw the maps of all workers that have answered; others keep their last one, paler. */
  draw(live) {
    const present = new Set();
    this.drawn = [];
    for (const worker of live.workers) {
      for (const [group, pages] of Object.entries(worker.pages)) {
        const key = `${worker.role === "prefill" ? 0 : 1}/${worker.name}/${group}`; // in which order they stand
        present.add(key);
        const map = this.known.get(key) ?? this.add(key, worker, group);
        map.element.classList.remove("silent");
        const runs = runsOf(live.lanes, worker.name, group, pages);
        const cells = cellsOf(runs, pages.total);
        say(map.words, sentence(runs, pages));
        map.canvas.setAttribute("aria-label", `${worker.name}: ${map.words.textContent}`);
        paint(map.canvas, cells);
        this.drawn.push({ canvas: map.canvas, cells });
      }
    }
    const silent = new Set(live.workers.filter((worker) => !worker.answers).map((worker) => worker.name));
    for (const [key, map] of this.known) {
      if (present.has(key)) continue;
      if (silent.has(map.worker)) {
        map.element.classList.add("silent");
      } else {
        map.element.remove();
        this.known.delete(key);
      }
    }
  }

  add(key, worker, group) {
    const element = make("div", "map"), title = make("h3", "", worker.name), canvas = make("canvas"), words = make("p", "quiet");
    const several = Object.keys(worker.pages).length > 1;
    title.append(make("span", "quiet", several ? `${worker.role}, group ${group}` : worker.role));
    canvas.setAttribute("role", "img");
    element.append(title, canvas, words);
    const after = [...this.known.entries()].find(([other]) => other > key);
    this.box.insertBefore(element, after ? after[1].element : null);
    const map = { element, canvas, words, worker: worker.name };
    this.known.set(key, map);
    this.known = new Map([...this.known.entries()].sort(([a], [b]) => (a < b ? -1 : 1)));
    return map;
  }
}

/** Runs of pages as {kind, pages}, requests first. Pages that requests share are cached ones, so requests may
 * state more pages than they own; then their runs are drawn in proportion. */
function runsOf(lanes, worker, group, pages) {
  const owned = pages.total - pages.free - (pages.cached ?? 0) - (pages.shared ?? 0);
  const holders = lanes.filter((lane) => lane.pages[worker]?.[group]).map((lane) => ({ kind: lane.phase, pages: lane.pages[worker][group] }));
  const stated = holders.reduce((sum, run) => sum + run.pages, 0);
  const share = stated > owned && stated > 0 ? owned / stated : 1;
  const runs = holders.map((run) => ({ ...run, pages: run.pages * share })).filter((run) => run.pages > 0);
  const others = owned - Math.min(stated, owned);
  if (others > 0) runs.push({ kind: "held", pages: others });
  for (const kind of ["shared", "cached", "free"]) if (pages[kind]) runs.push({ kind, pages: pages[kind] });
  return runs;
}

/** Cells of runs: at least one for each state that has pages. */
function cellsOf(runs, total) {
  const most = Math.min(CELLS, total), cells = [];
  let passed = 0, previous = null;
  for (const run of runs) {
    passed += run.pages;
    const until = Math.max(Math.round((most * passed) / total), run.kind === previous ? cells.length : cells.length + 1);
    for (let first = true; cells.length < Math.min(until, most); first = false) cells.push({ kind: run.kind, first });
    previous = run.kind;
  }
  return cells;
}

function sentence(runs, pages) {
  const byKind = new Map();
  for (const run of runs) byKind.set(run.kind, (byKind.get(run.kind) ?? 0) + run.pages);
  const names = [...byKind].map(([kind, n]) => `${count(n)} ${(PAGES[kind] ?? PHASES[kind] ?? [kind])[0].toLowerCase()}`);
  return `${several(pages.total, "page")}: ${names.join(", ")}`;
}

function paint(canvas, cells) {
  const width = canvas.clientWidth, columns = Math.max(1, Math.floor((width + GAP) / (CELL + GAP)));
  const height = Math.ceil(cells.length / columns) * (CELL + GAP) - GAP, scale = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d"), colours = getComputedStyle(document.documentElement);
  pen.scale(scale, scale);
  cells.forEach(({ kind, first }, index) => {
    const x = (index % columns) * (CELL + GAP), y = Math.floor(index / columns) * (CELL + GAP);
    paintCell(pen, colours, kind, x, y, CELL);
    if (first && kind in PHASES) {
      pen.fillStyle = colours.getPropertyValue("--card");
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + 6, y);
      pen.lineTo(x, y + 6);
      pen.fill();
    }
  });
}

/** Colour, and for what is not a request's a pattern: free is empty, cached has a stripe, cached in use has two. */
function paintCell(pen, colours, kind, x, y, size) {
  const card = colours.getPropertyValue("--card");
  pen.fillStyle = colours.getPropertyValue(`--${kind}`) || colours.getPropertyValue("--held");
  pen.fillRect(x, y, size, size);
  pen.strokeStyle = pen.fillStyle;
  if (kind === "free") {
    pen.fillStyle = card;
    pen.fillRect(x + 1.5, y + 1.5, size - 3, size - 3);
  }
  pen.strokeStyle = card;
  pen.lineWidth = 1.5;
  const stripe = (shift) => {
    pen.beginPath();
    pen.moveTo(x + Math.max(0, shift), y + size - Math.max(0, -shift));
    pen.lineTo(x + size + Math.min(0, shift), y + Math.max(0, shift));
    pen.stroke();
  };
  if (kind === "cached" || kind === "offered") stripe(0);
  if (kind === "shared" || kind === "preempted") [-4, 4].forEach(stripe);
}

function paintedSwatch(kind) {
  const made = make("canvas", "swatch");
  made.width = made.height = 28;
  made.setAttribute("aria-hidden", "true");
  const pen = made.getContext("2d");
  pen.scale(2, 2);
  paintCell(pen, getComputedStyle(document.documentElement), kind, 0, 0, 14);
  return made;
}
