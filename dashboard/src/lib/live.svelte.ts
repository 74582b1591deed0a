// The live view: one event a second, and the history before it.

import type { BusyNode, LiveEvent, LiveHistory } from "./answers";
import { get } from "./api";

export type NodeState = "answering" | "failing" | "no responses";

/**
 * The state of a node by its traffic. A node that accepts connections and does not answer has requests in flight, and
 * far more of them than it ends in ten seconds.
 */
export function stateOf(node: BusyNode): NodeState {
  if (node.error_rate > node.rate / 2) return "failing";
  return node.requests === 0 && node.in_flight > 10 * node.rate ? "no responses" : "answering";
}

export const TONES: Record<NodeState, string> = { answering: "good", failing: "bad", "no responses": "warn" };

class Live {
  event = $state<LiveEvent | undefined>();
  connected = $state(false);
  private source: EventSource | undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;

  start() {
    if (this.source) return;
    clearTimeout(this.retry);
    this.source = new EventSource("/apisix/admin/live");
    this.source.addEventListener("live", (message) => {
      this.connected = true;
      this.event = JSON.parse((message as MessageEvent<string>).data) as LiveEvent;
    });
    this.source.onerror = () => {
      this.connected = false;
      // A refused stream is closed for good; try again later.
      if (this.source?.readyState === EventSource.CLOSED) {
        this.stop();
        this.retry = setTimeout(() => this.again(), 5000);
      }
    };
  }

  /** Starts the stream again. If the session has ended, `get` signs out, which stops the retries. */
  private again() {
    const mine = (this.retry = setTimeout(() => this.again(), 5000));
    const start = () => mine === this.retry && this.start();
    get("live/history").then(start, () => {});
  }

  stop() {
    clearTimeout(this.retry);
    this.retry = undefined;
    this.source?.close();
    this.source = undefined;
    this.connected = false;
  }
}

export const live = new Live();

export function history(of: string, step: number): Promise<LiveHistory> {
  return get<LiveHistory>(`live/history?of=${encodeURIComponent(of)}&step=${step}`);
}
