// Numbers and times for people.

export function count(number: number): string {
  if (number >= 1e9) return `${trim(number / 1e9)}G`;
  if (number >= 1e6) return `${trim(number / 1e6)}M`;
  if (number >= 1e4) return `${trim(number / 1e3)}k`;
  return number >= 100 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
}

function trim(number: number): string {
  return number >= 100 ? number.toFixed(0) : number.toFixed(1);
}

export function bytes(number: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${at === 0 ? Math.round(number) : number.toFixed(1)} ${units[at]}`;
}

export function ms(number: number | null | undefined): string {
  if (number === null || number === undefined) return "–";
  if (number >= 10_000) return `${(number / 1000).toFixed(0)} s`;
  if (number >= 1000) return `${(number / 1000).toFixed(1)} s`;
  return number >= 10 ? `${number.toFixed(0)} ms` : `${number.toFixed(1)} ms`;
}

export function percent(share: number): string {
  if (share === 0) return "0 %";
  return share < 0.001 ? "<0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function when(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function clock(millis: number): string {
  return new Date(millis).toLocaleTimeString(undefined, { hour12: false });
}

export function duration(seconds: number): string {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}
