// The live view: one event a second, and the history before it.

import { get } from "./api";

export interface Sample {
  requests: number;
  errors: number;
  classes: number[];
  p50: number | null;
  p90: number | null;
  p99: number | null;
  received: number;
  sent: number;
}

export interface Busy extends Sample {
  id: string;
  rate: number;
  error_rate: number;
}

export interface LiveEvent {
  time: number;
  gateway: Sample;
  workers: (Sample & { cpu: number | null })[];
  routes: Busy[];
  nodes: Busy[];
  worst_routes: Busy[];
  connections: { open: number; idle: number; accepted: number };
  requests_in_flight: number;
  retries: number;
  faults: number;
  refused: number;
  memory: number;
  taps: number;
}

export interface History {
  step: number;
  from: number;
  until: number;
  requests: number[];
  errors: number[];
  classes: number[][];
  p50: (number | null)[];
  p90: (number | null)[];
  p99: (number | null)[];
  received: number[];
  sent: number[];
}

class Live {
  event = $state<LiveEvent | undefined>();
  connected = $state(false);
  private source: EventSource | undefined;

  start() {
    if (this.source) return;
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
        setTimeout(() => this.start(), 5000);
      }
    };
  }

  stop() {
    this.source?.close();
    this.source = undefined;
    this.connected = false;
  }
}

export const live = new Live();

export function history(of: string, step: number): Promise<History> {
  return get<History>(`live/history?of=${encodeURIComponent(of)}&step=${step}`);
}

/** Columns of a chart: times, then one column a line. */
export interface Columns {
  times: number[];
  rate: number[];
  errors: number[];
  p50: (number | null)[];
  p90: (number | null)[];
  p99: (number | null)[];
}

export function columns(from: History): Columns {
  const each = (list: number[]) => list.map((number) => number / from.step);
  return {
    times: from.requests.map((_, at) => from.from + at * from.step),
    rate: each(from.requests),
    errors: each(from.errors),
    p50: from.p50,
    p90: from.p90,
    p99: from.p99,
  };
}
