// Latency over the last two minutes, drawn by uPlot.

import { GAP_MS } from "./history.js";
import { count, durationText, find, say } from "./words.js";

const KEPT = 240;
const axisText = (ms) => (ms < 1_000 ? `${+ms.toFixed(1)} ms` : `${+(ms / 1_000).toFixed(2)} s`);

class Chart {
  constructor(box, words, colour) {
    this.box = find(box);
    this.words = find(words);
    this.at = [];
    this.median = [];
    this.slow = [];
    const ink = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name);
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const line = { stroke: ink(colour), width: 2, points: { show: false }, spanGaps: false };
    this.plot = new uPlot({
      width: this.box.clientWidth || 300,
      height: 170,
      legend: { show: false },
      cursor: { show: false },
      padding: [10, 14, 0, 0],
      scales: { x: { time: false, range: () => [-120, 0] }, y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.15)] } },
      axes: [
        { ...axis, size: 26, values: (_, marks) => marks.map((s) => (s === 0 ? "now" : `${s} s`)), splits: () => [-120, -90, -60, -30, 0] },
        { ...axis, size: 58, values: (_, marks) => marks.map((ms) => (ms === 0 ? "0" : axisText(ms))) },
      ],
      series: [{}, line, { ...line, stroke: ink("--soft"), width: 1.5, dash: [5, 4] }],
    }, [[0], [null], [null]], this.box);
    new ResizeObserver(() => this.plot.setSize({ width: this.box.clientWidth, height: 170 })).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.redraw());
  }

  push(at, median, slow) {
    this.at.push(at);
    this.median.push(median);
    this.slow.push(slow);
    if (this.at.length > KEPT) for (const kept of [this.at, this.median, this.slow]) kept.shift();
  }

  add(now, { p50_ms: median, p99_ms: slow, count: of }, noun) {
    const last = this.at.at(-1);
    if (now < last) for (const kept of [this.at, this.median, this.slow]) kept.length = 0;
    if (now - last > GAP_MS) this.push(last + 1, null, null);
    this.push(now, median, slow);
    this.plot.setData([this.at.map((at) => (at - now) / 1_000), this.median, this.slow]);
    say(this.words, of ? `median ${durationText(median)}, 99th percentile ${durationText(slow)}, of ${count(of)} ${noun}` : "nothing to measure now");
  }
}

export class Charts {
  constructor() {
    this.first = new Chart("first-chart", "first-now", "--computing");
    this.between = new Chart("between-chart", "between-now", "--running");
  }

  draw(live) {
    this.first.add(live.at_ms, live.first, "requests in 10 s");
    this.between.add(live.at_ms, live.between, "tokens in 0.5 s");
  }
}
