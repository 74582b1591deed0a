// The Admin API, with the session of the dashboard.

export interface Session {
  signed_in: boolean;
  key_required?: boolean;
  name: string;
  role: "admin" | "viewer";
  csrf: string;
}

export interface ServerError {
  error_msg?: string;
  description?: string;
  message?: string;
  pointer?: string;
  expected?: string;
  got?: string;
  hint?: string;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly body: ServerError,
  ) {
    super(body.error_msg ?? body.message ?? `status ${status}`);
  }
}

let csrf = "";
let onSignedOut = () => {};

export function whenSignedOut(run: () => void) {
  onSignedOut = run;
}

async function call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
  const sent = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
  const response = await fetch(path, {
    method,
    body: sent,
    credentials: "same-origin",
    headers: { ...(csrf && method !== "GET" ? { "X-CSRF-Token": csrf } : {}), ...headers },
  });
  return answerOf(response, path);
}

async function answerOf(response: Response, path: string) {
  const text = await response.text();
  let parsed: unknown = text;
  try {
    parsed = text ? JSON.parse(text) : {};
  } catch {
    // A plain text.
  }
  if (!response.ok) {
    const error = (typeof parsed === "object" && parsed) || { error_msg: text.trim() };
    if (response.status === 401 && path.startsWith("/apisix") && !JSON.stringify(error).includes("role")) onSignedOut();
    throw new ApiError(response.status, error as ServerError);
  }
  return { body: parsed, headers: response.headers };
}

/** Returns the reason that the gateway refuses a stream of events. The body of a stream is not read, since it has no end. */
export async function refusalOf(path: string): Promise<string> {
  const closing = new AbortController();
  try {
    const response = await fetch(path, { signal: closing.signal });
    if (!response.ok) await answerOf(response, path);
    return "The gateway accepts the stream again.";
  } catch (error) {
    return messageOf(error);
  } finally {
    closing.abort();
  }
}

export async function get<T>(path: string): Promise<T> {
  return (await call("GET", `/apisix/admin/${path}`)).body as T;
}

export async function send<T>(method: string, path: string, body?: unknown, headers?: Record<string, string>) {
  const done = await call(method, `/apisix/admin/${path}`, body, headers);
  return {
    body: done.body as T,
    outcome: done.headers.get("x-sluice-outcome") ?? "",
    warnings: done.headers.get("x-sluice-warning") ?? "",
  };
}

export async function session(): Promise<Session> {
  const found = (await call("GET", "/ui/session")).body as Session;
  csrf = found.csrf ?? "";
  return found;
}

export async function signIn(key: string): Promise<Session> {
  const made = (await call("POST", "/ui/session", { key })).body as Session;
  csrf = made.csrf;
  return made;
}

export async function signOut() {
  await call("DELETE", "/ui/session");
  csrf = "";
}

export function messageOf(error: unknown): string {
  if (error instanceof ApiError) {
    const { description, hint } = error.body;
    return [error.message, description, hint && `hint: ${hint}`].filter(Boolean).join(" · ");
  }
  return error instanceof Error ? error.message : String(error);
}
