// Reads /debug/live: server-sent events over fetch, because an EventSource sends no API key.

const AGAIN_MS = [500, 1_000, 2_000, 4_000];

/** Calls back for snapshots and for changes of the connection, for as long as the page is open. */
export class Feed {
  constructor({ key, onSnapshot, onState }) {
    Object.assign(this, { key, onSnapshot, onState });
    this.failures = 0;
    this.abort = null;
  }

  /** Begin, or begin again with another key. */
  start() {
    this.stop();
    this.abort = new AbortController();
    this.run(this.abort.signal);
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        await this.read(signal);
        this.onState("lost", "The gateway ended the connection.");
      } catch (error) {
        if (signal.aborted) return;
        this.onState("lost", error.message);
      }
      const pause = AGAIN_MS[Math.min(this.failures++, AGAIN_MS.length - 1)];
      await new Promise((wake) => setTimeout(wake, pause));
    }
  }

  async read(signal) {
    const answer = await fetch("debug/live", {
      headers: { accept: "text/event-stream", ...bearer(this.key()) },
      signal,
      cache: "no-store",
    });
    if (answer.status === 401) {
      this.onState("key", "This service shows itself to holders of an API key: enter one under “API key”.");
      this.stop();
      return;
    }
    if (!answer.ok) throw new Error(`The gateway answered ${answer.status}.`);
    for await (const data of events(answer.body)) {
      if (signal.aborted) return;
      this.failures = 0;
      this.onSnapshot(JSON.parse(data));
    }
  }
}

/** The header that carries a key, if there is one. */
export const bearer = (key) => (key ? { authorization: `Bearer ${key}` } : {});

/** The data of the events of a stream. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
