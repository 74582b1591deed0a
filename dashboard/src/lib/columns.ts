// The lines of the charts: the past, and the live seconds behind it.

import type { LiveHistory, Octave, Sample } from "./answers";

/** Requests whose duration is in one octave: its end in milliseconds, and their number. */
export type Slice = [below: number, requests: number];

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
  /** Durations; of the gateway alone. */
  latencies: Slice[][];
}

export const NO_COLUMNS: Columns = {
  times: [], rate: [], errors: [], p50: [], p90: [], p99: [], received: [], sent: [], connections: [], cpu: [], latencies: [],
};

/** The last `most` points. */
export function last(of: Columns, most: number): Columns {
  return Object.fromEntries(Object.entries(of).map(([name, list]) => [name, (list as number[]).slice(-most)])) as unknown as Columns;
}

/** One live second of a chart. */
export interface Point {
  time: number;
  sample: Sample;
  /** Of the whole gateway. */
  connections: number;
  cpu: number;
  latencies: Octave[];
}

/** The last `most` seconds with those points that are newer than the columns. */
export function appended(to: Columns, points: Point[], most: number): Columns {
  const until = to.times.at(-1) ?? 0;
  const added = points.filter((point) => point.time > until);
  if (!added.length) return to;
  const more: Columns = {
    times: added.map((point) => point.time),
    rate: added.map((point) => point.sample.requests),
    errors: added.map((point) => point.sample.errors),
    p50: added.map((point) => point.sample.p50),
    p90: added.map((point) => point.sample.p90),
    p99: added.map((point) => point.sample.p99),
    received: added.map((point) => point.sample.received),
    sent: added.map((point) => point.sample.sent),
    connections: added.map((point) => point.connections),
    cpu: added.map((point) => point.cpu),
    latencies: added.map((point) => slices(point.latencies, 0)),
  };
  const joined = Object.entries(to).map(([name, list]) => [name, [...(list as unknown[]), ...more[name as keyof Columns]]]);
  return last(Object.fromEntries(joined) as unknown as Columns, most);
}

export function columns(from: LiveHistory): Columns {
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
    latencies: from.requests.map((_, at) => slices(from.latencies ?? [], at)),
  };
}

/** The octaves that have requests in a step. */
function slices(octaves: Octave[], step: number): Slice[] {
  return octaves.map(({ below, counts }): Slice => [below, counts[step] ?? 0]).filter(([, requests]) => requests > 0);
}
