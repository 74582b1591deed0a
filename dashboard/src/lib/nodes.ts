// The nodes of an upstream: an object of addresses and weights, or a list of objects.

export interface Row {
  address: string;
  weight: number;
  /** Other fields of a node in a list, such as its priority. */
  more: Record<string, unknown>;
}

/** The nodes as rows; undefined if they have another form, which only the text can show. */
export function toRows(nodes: unknown): Row[] | undefined {
  if (nodes === undefined || nodes === null) return [];
  if (typeof nodes !== "object") return undefined;
  const rows: Row[] = [];
  if (Array.isArray(nodes)) {
    for (const node of nodes as unknown[]) {
      if (typeof node !== "object" || node === null || Array.isArray(node)) return undefined;
      const { host, port, weight, ...more } = node as Record<string, unknown>;
      if (typeof host !== "string" || ![port, weight].every((one) => one === undefined || typeof one === "number")) return undefined;
      rows.push({ address: joined(host, port as number | undefined), weight: (weight as number | undefined) ?? 1, more });
    }
    return rows;
  }
  for (const [address, weight] of Object.entries(nodes)) {
    if (typeof weight !== "number") return undefined;
    rows.push({ address, weight, more: {} });
  }
  return rows;
}

/** One text of both, with brackets around an IPv6 address. A port in the host wins, as in the gateway. */
function joined(host: string, port?: number): string {
  if (port === undefined || parted(host).port !== undefined) return host;
  return `${host.includes(":") && !host.startsWith("[") ? `[${host}]` : host}:${port}`;
}

/** Host and port. An IPv6 address has a port only behind brackets. */
function parted(address: string): { host: string; port?: number } {
  const found = /^(\[[^\]]*\]|[^:]*):(\d+)$/.exec(address);
  return found ? { host: found[1] ?? "", port: Number(found[2]) } : { host: address };
}

/** Rows in the form of nodes: a list if they were one, or if an object would lose one of them; undefined without any. */
export function fromRows(rows: Row[], wasList: boolean): unknown {
  if (!rows.length) return undefined;
  const isUnique = new Set(rows.map((row) => row.address)).size === rows.length;
  if (!wasList && isUnique) return Object.fromEntries(rows.map((row) => [row.address, row.weight]));
  return rows.map(({ address, weight, more }) => ({ ...parted(address), weight, ...more }));
}
