// The buttons of `baton serve --demo`: they hurt a worker, so that one can watch what becomes of its requests.

import { bearer } from "./feed.js";
import { make } from "./words.js";

const DEEDS = [
  ["kill", "Kill", "kill -9; the supervisor starts it again", (role) => role !== "prefill"],
  ["freeze", "Freeze 3 s", "it stands still for three seconds", (role) => role !== "decode"],
  ["cut", "Cut the wire", "its connection with this gateway is cut, and made anew", () => true],
  ["flip", "Flip bits", "a bit of each page of its memory flips, while it has no request", () => true],
];

/** Make the buttons of a worker; key: returns the API key; announce: tells a screen reader what was done. */
export const demoButtons = (key, announce) => (worker) => {
  const box = make("span", "row");
  for (const [deed, name, meaning, fits] of DEEDS) {
    if (!fits(worker.role)) continue;
    const button = make("button", "danger", name);
    button.type = "button";
    button.title = meaning;
    button.setAttribute("aria-label", `${name} ${worker.name}: ${meaning}`);
    button.addEventListener("click", () => hurt(deed, worker.name, button, { key, announce }));
    box.append(button);
  }
  return box;
};

async function hurt(deed, worker, button, { key, announce }) {
  button.disabled = true;
  const answer = await fetch(`demo/${deed}?worker=${encodeURIComponent(worker)}`, { method: "POST", headers: { "x-baton-demo": "1", ...bearer(key()) } });
  announce(answer.ok ? `${worker}: ${button.textContent} is under way.` : `The gateway refused: ${await reason(answer)}`);
  setTimeout(() => { button.disabled = false; }, 3_000);
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return answer.status;
  }
}
