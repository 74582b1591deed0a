// The kinds of resources, as the Admin API has them.

export interface Kind {
  path: string;
  one: string;
  many: string;
  /** Name of the schema, if the kind has one. */
  schema?: string;
  /** The id is the value of this field. */
  idField?: string;
  /** The gateway chooses an id if a new resource has none. */
  choosesId?: boolean;
  template: unknown;
  about: string;
}

export const kinds: Kind[] = [
  {
    path: "routes", one: "route", many: "Routes", schema: "route", choosesId: true,
    template: { name: "my-route", uri: "/hello/*", upstream: { type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } } },
    about: "A route matches requests by host, path and conditions, and sends them to an upstream.",
  },
  {
    path: "upstreams", one: "upstream", many: "Upstreams", schema: "upstream", choosesId: true,
    template: { name: "my-upstream", type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } },
    about: "An upstream is a set of servers with a way to choose among them.",
  },
  {
    path: "services", one: "service", many: "Services", schema: "service", choosesId: true,
    template: { name: "my-service", upstream_id: "1" },
    about: "A service holds plugins and an upstream that several routes share.",
  },
  {
    path: "consumers", one: "consumer", many: "Consumers", schema: "consumer", idField: "username",
    template: { username: "jack", plugins: { "key-auth": { key: "change-me" } } },
    about: "A consumer is a user of your APIs, identified by a credential.",
  },
  {
    path: "consumer_groups", one: "consumer group", many: "Consumer groups", schema: "consumer_group",
    template: { plugins: { "limit-count": { count: 100, time_window: 60, rejected_code: 429 } } },
    about: "A consumer group holds plugins for many consumers.",
  },
  {
    path: "ssls", one: "certificate", many: "Certificates", schema: "ssl", choosesId: true,
    template: { snis: ["example.org"], cert: "-----BEGIN CERTIFICATE-----\n…", key: "-----BEGIN PRIVATE KEY-----\n…" },
    about: "A certificate is served to clients that ask for its names.",
  },
  {
    path: "global_rules", one: "global rule", many: "Global rules", schema: "global_rule",
    template: { plugins: { "request-id": {} } },
    about: "A global rule's plugins run on every request.",
  },
  {
    path: "plugin_configs", one: "plugin config", many: "Plugin configs", schema: "plugin_config",
    template: { plugins: { cors: {} } },
    about: "A plugin config is a set of plugins that routes refer to.",
  },
  {
    path: "plugin_metadata", one: "plugin metadata", many: "Plugin metadata",
    template: { log_format: { host: "$host" } },
    about: "Plugin metadata holds settings that all instances of a plugin share. The id is the plugin's name.",
  },
  {
    path: "stream_routes", one: "stream route", many: "Stream routes", schema: "stream_route", choosesId: true,
    template: { server_port: 9100, upstream: { type: "roundrobin", nodes: { "127.0.0.1:6379": 1 } } },
    about: "A stream route sends TCP or UDP traffic to an upstream.",
  },
  {
    path: "protos", one: "proto", many: "Protos", schema: "proto", choosesId: true,
    template: { content: 'syntax = "proto3";' },
    about: "A proto is a Protocol Buffers file for transcoding gRPC.",
  },
  {
    path: "scripts", one: "script", many: "Scripts", schema: "script",
    template: {
      type: "plugin",
      content: 'local _M = {version = 0.1, priority = 1000, name = "my-plugin", schema = {type = "object"}}\n\nfunction _M.access(conf, ctx)\nend\n\nreturn _M\n',
    },
    about: "A script is a plugin in Lua, or a module of such plugins. The id is the plugin's name.",
  },
  {
    path: "secrets", one: "secret manager", many: "Secret managers",
    template: { uri: "https://vault.example.org", prefix: "kv/apisix", token: "…" },
    about: "A secret manager provides values for $secret:// references. The id is MANAGER/NAME.",
  },
];

/** The credentials of a consumer, as a kind of their own. */
export function credentialsOf(consumer: string): Kind {
  return {
    path: `consumers/${encodeURIComponent(consumer)}/credentials`, one: "credential", many: "Credentials", schema: "credential",
    template: { plugins: { "key-auth": { key: "change-me" } } },
    about: `A credential of the consumer ${consumer}: one key or password among several.`,
  };
}

export interface Entry {
  key: string;
  value: Record<string, unknown>;
  createdIndex?: number;
  modifiedIndex?: number;
}

export interface List {
  list: Entry[];
  total: number;
}

export function kindOf(path: string): Kind | undefined {
  return kinds.find((kind) => kind.path === path);
}

/**
 * The path of a resource below the Admin API. An id out of the page's address must not lead to another path, so one with
 * `..` is refused: browsers resolve it before they send the request.
 */
export function pathOf(kind: string, id: string): string {
  const parts = id.split("/");
  if (parts.some((part) => ["", ".", ".."].includes(part))) throw new Error(`invalid id: ${id}`);
  return [kind, ...parts.map(encodeURIComponent)].join("/");
}

/** A value without some of its fields. */
export function without(value: Record<string, unknown>, ...names: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !names.includes(name)));
}

/** The id of an entry within its kind. */
export function idOf(kind: Kind, entry: Entry): string {
  const at = entry.key.indexOf(`/${decodeURIComponent(kind.path)}/`);
  return at < 0 ? entry.key : entry.key.slice(at + decodeURIComponent(kind.path).length + 2);
}

/** The address of a resource's page, or of its kind's list. */
export function linkOf(kind: Kind, ...rest: string[]): string {
  return `#/${[kind.path, ...rest.map(encodeURIComponent)].join("/")}`;
}

/** A request that a resource's patterns match, as `METHOD URL`; none if it has no pattern. */
export function exampleOf(value: Record<string, unknown>): string | undefined {
  const first = (name: string) => ([value[`${name}s`], value[name]].flat().find((one) => typeof one === "string") as string | undefined) ?? "";
  const uri = first("uri");
  if (!uri) return undefined;
  const host = first("host").replace(/^\*/, "any");
  const path = uri.replace(/\*$/, "x").replace(/:[^/]+/g, "x");
  const method = (value.methods as string[] | undefined)?.[0] ?? "GET";
  return `${method} ${host ? `http://${host}` : ""}${path}`;
}

/** One line that distinguishes an entry from others. */
export function summary(value: Record<string, unknown>): string {
  const list = (name: string) => [value[name], value[`${name}s`]].flat().filter((one) => typeof one === "string");
  const parts: string[] = [];
  const methods = value.methods as string[] | undefined;
  if (methods?.length) parts.push(methods.join(","));
  parts.push([...list("host"), ...list("uri")].join(" "));
  parts.push(list("sni").join(" "));
  const nodes = value.nodes ?? (value.upstream as Record<string, unknown> | undefined)?.nodes;
  if (nodes) parts.push(`→ ${nodesOf(nodes).join(", ")}`);
  for (const name of ["upstream_id", "service_id", "plugin_config_id"]) {
    if (value[name] !== undefined) parts.push(`${name.replace("_id", "")} ${String(value[name])}`);
  }
  if (value.server_port !== undefined) parts.push(`port ${String(value.server_port)}`);
  return parts.filter(Boolean).join("  ");
}

export function nodesOf(nodes: unknown): string[] {
  if (Array.isArray(nodes)) return nodes.map((node: { host: string; port?: number }) => `${node.host}${node.port ? `:${node.port}` : ""}`);
  return nodes && typeof nodes === "object" ? Object.keys(nodes) : [];
}

export function pluginsOf(value: Record<string, unknown>): string[] {
  return value.plugins && typeof value.plugins === "object" ? Object.keys(value.plugins) : [];
}

/** The first resources that refer to one. */
export const referers: Record<string, { kind: string; field: string }[]> = {
  upstreams: ["routes", "services", "stream_routes"].map((kind) => ({ kind, field: "upstream_id" })),
  services: ["routes", "stream_routes"].map((kind) => ({ kind, field: "service_id" })),
  plugin_configs: [{ kind: "routes", field: "plugin_config_id" }],
  consumer_groups: [{ kind: "consumers", field: "group_id" }],
};
