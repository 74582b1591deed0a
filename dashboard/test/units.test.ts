import { describe, expect, it } from "vitest";
import { bytes, count, duration, ms, percent } from "../src/lib/format";
import { credentialsOf, exampleOf, idOf, kindOf, linkOf, pathOf, summary } from "../src/lib/kinds";
import { appended, columns, last, NO_COLUMNS, type Point } from "../src/lib/columns";
import { stateOf } from "../src/lib/live.svelte";
import { fromRows, toRows } from "../src/lib/nodes";
import { fits, shapeOf, skeleton, valueOf } from "../src/lib/schema";
import { diff, lineOf, mistakeOf, read, write } from "../src/lib/text";

describe("text", () => {
  const text = write({ uri: "/a", plugins: { cors: {}, "limit-count": { count: 0 } }, hosts: ["a", "b"] }, "yaml");

  it("survives both formats", () => {
    const { value } = read(text);
    expect(read(write(value, "json")).value).toEqual(value);
    expect(write(value, "yaml")).toBe(text);
  });

  it("finds the line of a pointer, or of what is above it", () => {
    const lines = text.split("\n");
    const at = (part: string) => lines.findIndex((line) => line.includes(part)) + 1;
    expect(lineOf(text, "/plugins/limit-count/count")).toBe(at("count: 0"));
    expect(lineOf(text, "/hosts/1")).toBe(at("- b"));
    expect(lineOf(text, "/plugins/limit-count/missing")).toBe(at("limit-count"));
    expect(lineOf('{\n "a": {\n  "b~/c": 1}}', "/a/b~0~1c")).toBe(3);
  });

  it("puts an error without a pointer at the plugin it names", () => {
    const mistake = mistakeOf(text, { error_msg: 'failed to check the configuration of plugin [limit-count]: too small' });
    expect(mistake.line).toBe(text.split("\n").findIndex((line) => line.includes("limit-count")) + 1);
  });

  it("reports broken YAML at its line and bounds aliases", () => {
    expect(read("a: 1\nb: [").mistake?.line).toBeGreaterThan(1);
    expect(read("a: 1\na: 2").mistake).toBeDefined();
    const bomb = `a: &a [x]\n${Array.from({ length: 30 }, () => "b: *a").join("\n")}`;
    expect(() => read(bomb)).not.toThrow(RangeError);
  });

  it("shows differences by line", () => {
    expect(diff("a\nb\nc\n", "a\nx\nc\n").map((line) => line.sign + line.text)).toEqual([" a", "-b", "+x", " c"]);
    expect(diff("", "a").filter((line) => line.sign === "+")).toHaveLength(1);
  });
});

describe("kinds", () => {
  const routes = kindOf("routes");
  if (!routes) throw new Error("no routes");

  it("never leads an id to another path", () => {
    for (const id of ["..", "a/../b", ".", "", "a//b"]) expect(() => pathOf("routes", id)).toThrow("invalid id");
    expect(pathOf("secrets", "vault/ä?#")).toBe("secrets/vault/%C3%A4%3F%23");
  });

  it("knows the ids of nested resources", () => {
    const own = credentialsOf("jack");
    expect(idOf(own, { key: "/apisix/consumers/jack/credentials/phone", value: {} })).toBe("phone");
    expect(idOf(routes, { key: "/apisix/routes/r1", value: {} })).toBe("r1");
    expect(linkOf(own, "phone")).toBe("#/consumers/jack/credentials/phone");
  });

  it("summarises and finds an example", () => {
    const value = { methods: ["POST"], host: "*.a.test", uri: "/v1/:id/*", upstream: { nodes: { "10.0.0.1:80": 1 } } };
    expect(summary(value)).toBe("POST  *.a.test /v1/:id/*  → 10.0.0.1:80");
    expect(exampleOf(value)).toBe("POST http://any.a.test/v1/x/x");
    expect(exampleOf({ nodes: {} })).toBeUndefined();
  });
});

describe("schemas", () => {
  it("offer an input for each shape", () => {
    expect(shapeOf({ enum: ["a"] })).toBe("choice");
    expect(shapeOf({ oneOf: [{ type: "integer" }, { type: "string" }] })).toBe("text");
    expect(shapeOf({ type: "array", items: { type: "string" } })).toBe("list");
    expect(shapeOf({ type: "array", items: { type: "object" } })).toBe("other");
    expect(shapeOf({ type: "object", properties: { a: { type: "string" } } })).toBe("group");
    expect(shapeOf({})).toBe("other");
  });

  it("keep what an input cannot show in the text", () => {
    expect(fits("number", "$var")).toBe(true);
    expect(fits("text", { a: 1 })).toBe(false);
    expect(fits("list", [{ a: 1 }])).toBe(false);
  });

  it("write numbers as numbers where the schema takes them", () => {
    const either = { oneOf: [{ type: "integer" }, { type: "string" }] };
    expect(valueOf(either, "12")).toBe(12);
    expect(valueOf(either, "$a")).toBe("$a");
    expect(valueOf({ type: "string" }, "12")).toBe("12");
    expect(valueOf(either, "")).toBeUndefined();
  });

  it("fill in what is required", () => {
    const schema = { type: "object", required: ["a", "b"], properties: { a: { type: "integer", minimum: 5 }, b: { type: "string", default: "x" }, c: { type: "string" } } };
    expect(skeleton(schema)).toEqual({ a: 5, b: "x" });
  });
});

describe("nodes", () => {
  const through = (nodes: unknown) => fromRows(toRows(nodes) ?? [], Array.isArray(nodes));

  it("keep their form and their other fields", () => {
    for (const nodes of [
      { "10.0.0.1:80": 1, "[::1]:81": 0, host: 2 },
      [{ host: "10.0.0.1", port: 80, weight: 1, priority: -1, metadata: { zone: "a" } }, { host: "[::1]", weight: 2 }, { host: "::1", port: 80, weight: 2 }],
    ]) {
      const made = through(nodes);
      expect(Array.isArray(made)).toBe(Array.isArray(nodes));
      expect(toRows(made)).toEqual(toRows(nodes));
    }
    expect(through([{ host: "::1", weight: 1 }])).toEqual([{ host: "::1", weight: 1 }]);
    expect(through({})).toBeUndefined();
  });

  it("keep the port of an IPv6 address", () => {
    expect(toRows([{ host: "::1", port: 80, weight: 2 }])).toEqual([{ address: "[::1]:80", weight: 2, more: {} }]);
    expect(through([{ host: "::1", port: 80, weight: 2 }])).toEqual([{ host: "[::1]", port: 80, weight: 2 }]);
    expect(through([{ host: "[::1]", port: 80, weight: 2 }])).toEqual([{ host: "[::1]", port: 80, weight: 2 }]);
  });

  it("use the port in the host before the one beside it", () => {
    expect(through([{ host: "a.test:81", port: 82, weight: 1 }])).toEqual([{ host: "a.test", port: 81, weight: 1 }]);
    expect(through([{ host: "[::1]:81", port: 82, weight: 1 }])).toEqual([{ host: "[::1]", port: 81, weight: 1 }]);
  });

  it("become a list where an object would lose one", () => {
    const rows = [{ address: "a:1", weight: 1, more: {} }, { address: "a:1", weight: 2, more: {} }];
    expect(fromRows(rows, false)).toEqual([{ host: "a", port: 1, weight: 1 }, { host: "a", port: 1, weight: 2 }]);
  });

  it("of another form are left to the text", () => {
    for (const nodes of ["a", 5, [1], [{ port: 80 }], [{ host: "a", weight: "1" }], { "a:1": "$weight" }]) expect(toRows(nodes)).toBeUndefined();
  });

  it("without responses have a state of their own", () => {
    const node = { id: "a:1", requests: 0, errors: 0, classes: [], p50: null, p90: null, p99: null, received: 0, sent: 0, rate: 0, error_rate: 0, in_flight: 0 };
    expect(stateOf(node)).toBe("answering");
    expect(stateOf({ ...node, in_flight: 1 })).toBe("no responses");
    expect(stateOf({ ...node, in_flight: 5, rate: 20, requests: 0 })).toBe("answering");
    expect(stateOf({ ...node, in_flight: 500, rate: 20, requests: 1 })).toBe("answering");
    expect(stateOf({ ...node, in_flight: 9, rate: 2, error_rate: 2, requests: 0 })).toBe("failing");
  });
});

describe("columns of charts", () => {
  const sample = { requests: 1, errors: 0, classes: [], p50: 2, p90: null, p99: null, received: 0, sent: 0 };
  const points: Point[] = [5, 6, 7].map((time) => ({ time, sample, connections: 3, cpu: 0.5, latencies: [{ below: 4.096, counts: [7] }] }));

  it("take each live second once, after the past", () => {
    const past = appended(NO_COLUMNS, points.slice(0, 2), 10);
    expect(past.times).toEqual([5, 6]);
    // The answer of the history has some of the live seconds already.
    const all = appended(past, points, 10);
    expect(all.times).toEqual([5, 6, 7]);
    expect(all.connections).toEqual([3, 3, 3]);
    expect(appended(all, points, 10)).toBe(all);
    expect(appended(all, [{ ...points[0], time: 8 } as Point], 2).times).toEqual([7, 8]);
    expect(last(all, 1).p50).toEqual([2]);
    expect(last(all, 1).latencies).toEqual([[[4.096, 7]]]);
  });

  it("have the durations of each step", () => {
    const one = [1, 1];
    const octaves = [{ below: 1.024, counts: [0, 4] }, { below: 2.048, counts: [3, 0] }];
    const past = { of: "gateway", step: 10, from: 10, until: 20, requests: one, errors: one, classes: [], p50: one, p90: one, p99: one, received: one, sent: one };
    expect(columns({ ...past, latencies: octaves }).latencies).toEqual([[[2.048, 3]], [[1.024, 4]]]);
    expect(columns(past).latencies).toEqual([[], []]);
  });
});

describe("numbers", () => {
  it("are short", () => {
    expect([count(12_345), count(3.14159), count(2_500_000)]).toEqual(["12.3k", "3.1", "2.5M"]);
    expect([bytes(512), bytes(1536)]).toEqual(["512 B", "1.5 KiB"]);
    expect([ms(null), ms(0.5), ms(1500)]).toEqual(["–", "0.5 ms", "1.5 s"]);
    expect([percent(0), percent(0.0001), percent(0.5)]).toEqual(["0 %", "<0.1 %", "50 %"]);
    expect([duration(30), duration(7200)]).toEqual(["30 s", "2 h"]);
  });
});
