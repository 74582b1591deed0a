// Resources as text: YAML or JSON, errors at their lines, differences.

import { isMap, isScalar, isSeq, parseDocument, stringify, LineCounter } from "yaml";
import type { ServerError } from "./api";

export type Format = "yaml" | "json";

export function write(value: unknown, format: Format): string {
  if (format === "json") return `${JSON.stringify(value, null, 2)}\n`;
  return stringify(value, { lineWidth: 0, aliasDuplicateObjects: false });
}

export interface Mistake {
  line: number;
  message: string;
}

/** Parses YAML, and JSON, which is YAML. */
export function read(text: string): { value?: unknown; mistake?: Mistake } {
  const lines = new LineCounter();
  const parsed = parseDocument(text, { lineCounter: lines, uniqueKeys: true });
  const error = parsed.errors[0];
  if (error) {
    return { mistake: { line: lines.linePos(error.pos[0]).line, message: error.message.split("\n")[0] ?? "" } };
  }
  return { value: parsed.toJS({ maxAliasCount: 20 }) as unknown };
}

/** The line of a JSON pointer in a text; that of the nearest part above it that exists. */
export function lineOf(text: string, pointer: string): number {
  const lines = new LineCounter();
  let node: unknown = parseDocument(text, { lineCounter: lines }).contents;
  let at = 0;
  for (const raw of pointer.split("/").slice(1)) {
    const name = raw.replace(/~1/g, "/").replace(/~0/g, "~");
    if (isMap(node)) {
      const pair = node.items.find((pair) => isScalar(pair.key) && String(pair.key.value) === name);
      if (!pair) break;
      if (isScalar(pair.key) && pair.key.range) at = pair.key.range[0];
      node = pair.value;
    } else if (isSeq(node)) {
      node = node.items[Number(name)];
      const range = (node as { range?: [number, number, number] } | undefined)?.range;
      if (range) at = range[0];
    } else break;
  }
  return lines.linePos(at).line || 1;
}

/** Where a server's error is, and what it says. */
export function mistakeOf(text: string, error: ServerError): Mistake {
  const message = error.error_msg ?? error.message ?? "the gateway refuses this";
  // Most messages have the types already.
  const has = message.includes("expected");
  const more = [!has && error.expected && `expected ${error.expected}`, !has && error.got && `got ${error.got}`, error.hint];
  let pointer = error.pointer ?? "";
  if (!pointer) {
    // APISIX's message names the property: property "uri" validation failed.
    const name = /property "([^"]+)"/.exec(message)?.[1];
    if (name) pointer = `/${name}`;
    const plugin = /plugin (?:name: )?\[?([\w-]+)\]?/.exec(message)?.[1];
    if (plugin && text.includes(plugin)) pointer = `/plugins/${plugin}`;
  }
  return { line: lineOf(text, pointer), message: [message, ...more].filter(Boolean).join(" · ") };
}

export interface DiffLine {
  sign: "+" | "-" | " ";
  text: string;
}

/** Differences by line; the longest common subsequence. */
export function diff(before: string, after: string): DiffLine[] {
  const [a, b] = [before, after].map((text) => text.replace(/\n$/, "").split("\n")) as [string[], string[]];
  // Larger texts are shown one after the other.
  if (a.length * b.length > 4_000_000) {
    return [...a.map((text) => ({ sign: "-" as const, text })), ...b.map((text) => ({ sign: "+" as const, text }))];
  }
  const table = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  const cell = (i: number, j: number) => table[i]?.[j] ?? 0;
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const row = table[i];
      if (row) row[j] = a[i] === b[j] ? cell(i + 1, j + 1) + 1 : Math.max(cell(i + 1, j), cell(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ sign: " ", text: a[i] ?? "" });
      i += 1;
      j += 1;
    } else if (i < a.length && (j >= b.length || cell(i + 1, j) >= cell(i, j + 1))) {
      lines.push({ sign: "-", text: a[i] ?? "" });
      i += 1;
    } else {
      lines.push({ sign: "+", text: b[j] ?? "" });
      j += 1;
    }
  }
  return lines;
}
