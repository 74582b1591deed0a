// Answers of the Admin API beside its own description: what a page reads must be as the document says.
import Ajv from "ajv/dist/2020.js";

const BASE = "/apisix/admin";

/** Reads the document of the gateway, and returns a check that throws. */
export async function described({ ADMIN, KEY }) {
  const answer = await fetch(`http://${ADMIN}${BASE}/openapi.json`, { headers: { "X-API-KEY": KEY } });
  const document = await answer.json();
  const ajv = new Ajv({ strict: false, allErrors: true });
  // As a whole it is no schema: only its parts are.
  ajv.addSchema({ ...document, $id: "api:" }, "api:", false, false);
  const paths = Object.keys(document.paths)
    .sort((a, b) => a.split("{").length - b.split("{").length)
    .map((path) => [path, new RegExp(`^${path.replaceAll(".", "\\.").replace(/\{[^}]*\}/g, "[^/]+")}$`)]);

  const pointer = (...parts) => parts.map((part) => `/${encodeURIComponent(part.replaceAll("~", "~0").replaceAll("/", "~1"))}`).join("");

  function validate(reference, value, what) {
    const schema = ajv.getSchema(`api:#${reference}`);
    if (!schema) throw new Error(`${what}: the document has no schema`);
    if (!schema(value)) throw new Error(`${what}: ${ajv.errorsText(schema.errors)}`);
  }

  return {
    /** Checks a value against one of the document's schemas. */
    value: (name, value) => validate(pointer("components", "schemas", name), value, name),
    /** Checks an answer to a request below /apisix/admin. */
    answer(method, pathname, status, value) {
      const [path] = paths.find(([, pattern]) => pattern.test(pathname.slice(BASE.length))) ?? [];
      const what = `${method} ${pathname} ${status}`;
      const response = document.paths[path]?.[method.toLowerCase()]?.responses[status];
      if (!response) throw new Error(`${what} is not described`);
      if (!response.content) return;
      validate(pointer("paths", path, method.toLowerCase(), "responses", String(status), "content", "application/json", "schema"), value, what);
    },
  };
}

/** Has the answers that a page gets checked; `wrong` gathers the differences. */
export function compare(page, api, wrong) {
  page.on("response", async (response) => {
    const { pathname } = new URL(response.url());
    if (!pathname.startsWith(`${BASE}/`) || !response.ok()) return;
    if (!response.headers()["content-type"]?.startsWith("application/json")) return;
    // The page may have been left meanwhile.
    const value = await response.json().catch(() => undefined);
    if (value === undefined) return;
    try {
      api.answer(response.request().method(), pathname, response.status(), value);
    } catch (error) {
      wrong.push(`answer: ${error.message}`);
    }
  });
}

/** The first event of a stream. */
export async function firstEvent({ ADMIN, KEY }, path) {
  const answer = await fetch(`http://${ADMIN}${BASE}/${path}`, { headers: { "X-API-KEY": KEY } });
  let text = "";
  for await (const part of answer.body) {
    text += new TextDecoder().decode(part);
    const data = /^data: (.*)\n\n/m.exec(text);
    if (data) return JSON.parse(data[1]);
  }
  throw new Error(`${path} ended without an event`);
}
