// Shared by all charts: colours, axes, and their life on the page.

import type uPlot from "uplot";

/** The value of a colour of the style sheet, which depends on the system's light or dark scheme. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function axisOf(): uPlot.Axis {
  return { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
}

/** The axis of times, with seconds where the chart is short. */
export function timeAxis(axis: uPlot.Axis, times: () => number[]): uPlot.Axis {
  const shown = (all: number[]) => {
    const seconds = (times().at(-1) ?? 0) - (times()[0] ?? 0) < 240;
    const format: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}), hour12: false };
    return all.map((time) => new Date(time * 1000).toLocaleTimeString([], format));
  };
  return { ...axis, size: 24, space: 72, values: (_, all) => shown(all) };
}

/** Draws a chart, in the size of its box and again when the system's scheme changes. `end` is called with its component. */
export function keep(box: HTMLElement, height: number, make: () => uPlot) {
  let plot = make();
  const again = () => {
    plot.destroy();
    plot = make();
  };
  const resized = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height }));
  resized.observe(box);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", again);
  return {
    show: (data: uPlot.AlignedData) => plot.setData(data),
    end() {
      resized.disconnect();
      scheme.removeEventListener("change", again);
      plot.destroy();
    },
  };
}
