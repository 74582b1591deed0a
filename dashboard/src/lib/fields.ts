// The meanings of fields and the purposes of plugins, as the documentation has them.

export interface About {
  about: string;
  /** Instructions that the plugin adds to a request, where the bench has measured it. */
  price?: number;
  fields?: Record<string, string>;
  consumer?: Record<string, string>;
}

export interface Meanings {
  plugins: Record<string, About>;
  resources: Record<string, Record<string, string>>;
}

let known: Promise<Meanings> | undefined;

/** Loads the meanings once; without them a form has no texts. */
export function meanings(): Promise<Meanings> {
  known ??= fetch("fields.json")
    .then((answer) => answer.json() as Promise<Meanings>)
    .catch(() => {
      known = undefined;
      return { plugins: {}, resources: {} };
    });
  return known;
}

/** The texts of documentation have Markdown's marks of code. */
export function plain(text: string): string {
  return text.replace(/`/g, "");
}
