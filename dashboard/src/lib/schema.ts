// JSON schemas, as far as forms understand them.

export interface Field {
  type?: string | string[];
  enum?: unknown[];
  description?: string;
  default?: unknown;
  minimum?: number;
  items?: Field;
  properties?: Record<string, Field>;
  required?: string[];
  anyOf?: Field[];
  oneOf?: Field[];
}

export type Shape = "choice" | "switch" | "number" | "text" | "list" | "group" | "other";

/** The kind of input for a field. Of alternatives the simplest is offered: the text has the others. */
export function shapeOf(field: Field): Shape {
  if (field.enum) return "choice";
  const own = Array.isArray(field.type) ? field.type[0] : field.type;
  if (!own) {
    const shapes = [...(field.anyOf ?? []), ...(field.oneOf ?? [])].map(shapeOf);
    return (["text", "number"] as const).find((shape) => shapes.includes(shape)) ?? "other";
  }
  if (own === "boolean") return "switch";
  if (own === "integer" || own === "number") return "number";
  if (own === "string") return "text";
  if (own === "array" && field.items && ["text", "choice"].includes(shapeOf(field.items))) return "list";
  if (own === "object" && Object.keys(field.properties ?? {}).length) return "group";
  return "other";
}

/** Whether a form's input can show a value: a template in place of a number needs the text. */
export function fits(shape: Shape, value: unknown): boolean {
  if (value === undefined) return true;
  if (shape === "group") return typeof value === "object" && value !== null && !Array.isArray(value);
  if (shape === "list") return Array.isArray(value) && value.every((one) => typeof one === "string");
  if (shape === "switch") return typeof value === "boolean";
  return typeof value === "string" || typeof value === "number";
}

/** The value of an input's text, where a schema takes numbers and texts. */
export function valueOf(field: Field, text: string): unknown {
  if (text === "") return undefined;
  const takes = (type: string) => [field, ...(field.anyOf ?? []), ...(field.oneOf ?? [])].some((one) => [one.type].flat().includes(type));
  const isNumber = (takes("integer") || takes("number")) && /^-?\d+(\.\d+)?$/.test(text);
  return isNumber ? Number(text) : text;
}

/** A value with the fields that a schema requires. */
export function skeleton(schema: Field): unknown {
  if (schema.default !== undefined) return schema.default;
  switch (shapeOf(schema)) {
    case "choice":
      return schema.enum?.[0];
    case "switch":
      return false;
    case "number":
      return schema.minimum ?? 1;
    case "text":
      return "";
    case "list":
      return [];
    default:
      return Object.fromEntries((schema.required ?? []).map((name) => [name, skeleton(schema.properties?.[name] ?? {})]));
  }
}
