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

export interface BusyNode extends Busy {
  in_flight: number;
}

export interface LiveEvent {
  time: number;
  gateway: Sample;
  workers: (Sample & { cpu: number | null })[];
  routes: Busy[];
  nodes: BusyNode[];
  streams: Busy[];
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
  /** Of the gateway and its workers. */
  connections?: number[];
  cpu?: number[];
}

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

export function history(of: string, step: number): Promise<History> {
  return get<History>(`live/history?of=${encodeURIComponent(of)}&step=${step}`);
}

/** Columns of the charts: times, then one column for each line. Counts are for one second. */
export interface Columns {
  times: number[];
  rate: number[];
  errors: number[];
  p50: (number | null)[];
  p90: (number | null)[];
  p99: (number | null)[];
  received: number[];
  sent: number[];
  connections: number[];
  cpu: number[];
}

export const NO_COLUMNS: Columns = {
  times: [], rate: [], errors: [], p50: [], p90: [], p99: [], received: [], sent: [], connections: [], cpu: [],
};

/** The last `most` points. */
export function last(of: Columns, most: number): Columns {
  return Object.fromEntries(Object.entries(of).map(([name, list]) => [name, (list as number[]).slice(-most)])) as unknown as Columns;
}

/** The last `most` seconds after one more. */
export function appended(to: Columns, time: number, sample: Sample, whole: { connections: number; cpu: number } | undefined, most: number): Columns {
  const one: Record<keyof Columns, number | null> = {
    times: time, rate: sample.requests, errors: sample.errors, p50: sample.p50, p90: sample.p90, p99: sample.p99,
    received: sample.received, sent: sample.sent, connections: whole?.connections ?? 0, cpu: whole?.cpu ?? 0,
  };
  const longer = Object.entries(to).map(([name, list]) => [name, [...(list as (number | null)[]), one[name as keyof Columns]].slice(-most)]);
  return Object.fromEntries(longer) as unknown as Columns;
}

export function columns(from: History): Columns {
  const each = (list: number[]) => list.map((number) => number / from.step);
  const none = () => from.requests.map(() => 0);
  return {
    times: from.requests.map((_, at) => from.from + at * from.step),
    rate: each(from.requests),
    errors: each(from.errors),
    p50: from.p50,
    p90: from.p90,
    p99: from.p99,
    received: each(from.received),
    sent: each(from.sent),
    connections: from.connections ?? none(),
    cpu: from.cpu ?? none(),
  };
}
