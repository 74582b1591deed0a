// Where the page is: the part of the address after `#`.

class Router {
  path = $state(location.hash.slice(1) || "/");

  constructor() {
    addEventListener("hashchange", () => {
      this.path = location.hash.slice(1) || "/";
    });
  }

  get parts(): string[] {
    const [path] = this.path.split("?");
    return (path ?? "").split("/").filter(Boolean).map(decoded);
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.path.split("?")[1] ?? "");
  }

  go(path: string) {
    location.hash = path;
  }

  /** Changes the address without a step in the browser's history. */
  replace(path: string) {
    history.replaceState(null, "", `#${path}`);
    this.path = path;
  }
}

/** Decodes a part; one with invalid percent-encoding is returned unchanged. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const router = new Router();

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}
