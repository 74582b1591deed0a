// A browser with the dashboard, driven as a person would: by labels, roles and texts.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const { SHOTS } = process.env;
mkdirSync(SHOTS, { recursive: true });

/** The sum of layout shifts that a page may have, and still be called good by Web Vitals. */
const MOST_SHIFT = 0.1;

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Opens a browser for the dashboard at `base`; `wrong` gathers what it logs. */
export async function open(base) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(`exception: ${error.message}`));
  page.on("console", (message) => {
    // The browser itself reports answers above 399 and lost connections, which some steps ask for.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) wrong.push(message.text());
  });
  await page.addInitScript(() => {
    window.shift = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
  });
  // With DIST the page is that of a folder, so that it can be changed without building the gateway.
  for (const name of process.env.DIST ? ["index.html", "app.js", "app.css"] : []) {
    const body = gunzipSync(readFileSync(`${process.env.DIST}/${name}.gz`));
    const type = { html: "text/html", js: "text/javascript", css: "text/css" }[name.split(".")[1]];
    await context.route(`**/ui/${name.replace("index.html", "")}`, (route) => route.fulfill({ body, contentType: type }));
  }
  if (process.env.FIELDS) {
    await context.route("**/ui/fields.json", (route) => route.fulfill({ path: process.env.FIELDS }));
  }

  const at = (path) => page.goto(`${base}#${path}`);
  const click = (name) => page.getByRole("button", { name, exact: true }).click();
  const editor = (name) => page.getByRole("textbox", { name: new RegExp(`^${name} as`) });

  /** Keeps pictures of the page, light and dark, and has axe look at it. */
  async function inspect(name, { shifts = true } = {}) {
    if (shifts) {
      const shift = await page.evaluate(() => window.shift);
      assert.ok(shift <= MOST_SHIFT, `${name} shifts by ${shift.toFixed(3)}`);
    }
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      await pause(120);
      await page.screenshot({ path: `${SHOTS}/${name}-${scheme}.png`, fullPage: true });
      // Outside of the page's policy, as an extension of the browser would.
      const cdp = await context.newCDPSession(page);
      await cdp.send("Runtime.evaluate", { expression: axe });
      const found = await cdp.send("Runtime.evaluate", {
        expression: `axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | "))))`,
        awaitPromise: true,
        returnByValue: true,
      });
      assert.deepEqual(JSON.parse(found.result.value), [], `axe on ${name}, ${scheme}`);
      await cdp.detach();
    }
    await page.emulateMedia({ colorScheme: "light" });
  }

  /** Loads a page again, so that its layout shifts are its own. */
  async function fresh(path) {
    await at(path);
    await page.reload();
  }

  async function signIn(key) {
    await page.getByLabel("Admin key").fill(key);
    await click("Sign in");
  }

  async function step(name, run) {
    const began = Date.now();
    try {
      await run();
    } catch (error) {
      await page.screenshot({ path: `${SHOTS}/failed.png`, fullPage: true }).catch(() => {});
      throw new Error(`${name}: ${error.message}`, { cause: error });
    }
    console.log(`ok ${name} (${Date.now() - began} ms)`);
  }

  return { browser, context, page, wrong, at, click, editor, inspect, fresh, signIn, step };
}
