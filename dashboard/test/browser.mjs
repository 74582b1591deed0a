// Drives the dashboard in a real browser, as a person would, and looks at every page with axe.
// Environment: ADMIN, PROXY and UPSTREAM are addresses, KEY the admin key, SHOTS a folder for screenshots.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";

const { ADMIN, PROXY, UPSTREAM, KEY, SHOTS } = process.env;
const base = `http://${ADMIN}/ui/`;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const hostile = `<img src=x onerror="window.hacked=1">{{7*7}}`;
mkdirSync(SHOTS, { recursive: true });

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
  // The browser itself reports answers above 399, which some steps ask for.
  if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) wrong.push(message.text());
});

// With DIST the page is that of a folder, so that it can be changed without building the gateway.
for (const name of process.env.DIST ? ["index.html", "app.js", "app.css"] : []) {
  const body = gunzipSync(readFileSync(`${process.env.DIST}/${name}.gz`));
  const type = { html: "text/html", js: "text/javascript", css: "text/css" }[name.split(".")[1]];
  await context.route(`${base}${name.replace("index.html", "")}`, (route) => route.fulfill({ body, contentType: type }));
}

let traffic = true;
async function send() {
  for (let at = 0; traffic; at += 1) {
    await fetch(`http://${PROXY}${at % 5 ? "/hello/a" : "/nothing"}`).catch(() => {});
    await new Promise((done) => setTimeout(done, 25));
  }
}

async function at(path) {
  await page.goto(`${base}#${path}`);
}

async function inspect(name) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.waitForTimeout(150);
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

const editor = (name) => page.getByRole("textbox", { name: new RegExp(`^${name} as`) });
const click = (name) => page.getByRole("button", { name, exact: true }).click();

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

try {
  await step("a wrong key is refused, the right one signs in", async () => {
    await page.goto(base);
    await page.getByLabel("Admin key").fill("wrong");
    await click("Sign in");
    await page.getByText("this is not an admin key").waitFor();
    await inspect("sign-in");
    await page.getByLabel("Admin key").fill(KEY);
    await click("Sign in");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    assert.equal(await page.evaluate(() => document.cookie), "", "scripts must not see the cookie");
    assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage })), "{}");
  });

  await step("empty lists say what to do next", async () => {
    await at("/services");
    await page.getByText("No services yet").waitFor();
  });

  await step("an id out of the address leads to no other path", async () => {
    for (const [path, id] of [["/upstreams/..%2F..%2Fui", "../../ui"], ["/routes/..", ".."], ["/services/new?copy=..%2Froutes", "../routes"]]) {
      await at(path);
      await page.getByText(`invalid id: ${id}`, { exact: true }).waitFor();
    }
    await at("/routes/%");
    await page.getByRole("heading", { name: "Routes / %" }).waitFor();
  });

  await step("an upstream, a route and a consumer are created", async () => {
    for (const [kind, one, id, value] of [
      ["upstreams", "upstream", "u1", { name: "nodes", type: "roundrobin", nodes: { [UPSTREAM]: 1 } }],
      ["routes", "route", "r1", { name: hostile, uri: "/hello/*", upstream_id: "u1", plugins: { "response-rewrite": { headers: { set: { "X-A": "b" } } } } }],
      ["consumers", "consumer", "", { username: "jack", plugins: { "key-auth": { key: "jacks-key" } } }],
    ]) {
      await at(`/${kind}/new`);
      await page.waitForFunction(() => (document.querySelector("textarea")?.value ?? "").length > 5);
      await editor(one).fill(JSON.stringify(value, null, 2));
      if (id) await page.getByLabel("Id", { exact: true }).fill(id);
      await click("Review and save");
      await page.getByRole("dialog", { name: "Review the change" }).waitFor();
      await click("Create");
      await page.waitForURL((url) => !url.hash.includes("/new"));
    }
  });

  void send();
  await step("the charts move", async () => {
    await at("/");
    await page.waitForFunction(() => Number.parseFloat(document.querySelector('[data-figure="rate"]')?.textContent ?? "0") > 5);
    await page.locator("table a", { hasText: "r1" }).first().waitFor();
    await page.waitForTimeout(4000);
    await inspect("overview");
  });

  await step("a hostile name is shown as text", async () => {
    await at("/routes");
    await page.getByText(hostile).waitFor();
    await inspect("routes");
    assert.equal(await page.evaluate(() => window.hacked), undefined);
  });

  await step("search narrows the list on the server", async () => {
    await page.keyboard.press("/");
    await page.keyboard.type("no such thing");
    await page.getByText("Nothing matches").waitFor();
    await page.getByRole("searchbox").fill("HELLO");
    await page.locator("table a", { hasText: "r1" }).waitFor();
  });

  await step("the page of a route shows its chart, plugins and nodes", async () => {
    await at("/routes/r1");
    await page.getByText("response-rewrite").first().waitFor();
    await page.getByText(UPSTREAM).first().waitFor();
    await page.waitForTimeout(2500);
    await inspect("route");
  });

  await step("the server's error is at its line", async () => {
    await at("/routes/r1/edit");
    const text = editor("route");
    await page.waitForFunction(() => document.querySelector("textarea")?.value.includes("upstream_id"));
    const good = await text.inputValue();
    const line = good.split("\n").findIndex((one) => one.startsWith("uri:")) + 1;
    await text.fill(good.replace("uri: /hello/*", "uri: 5"));
    await click("Review and save");
    await page.locator("#mistake", { hasText: `Line ${line}` }).waitFor();
    assert.match(await page.locator("#mistake").innerText(), /uri/);
    assert.equal(await page.locator(".gutter .wrong").innerText(), String(line));
    await inspect("editor-error");
    await text.fill(good.replace("uri: /hello/*", "uri: [/hello/*"));
    await click("Review and save");
    await page.locator("#mistake", { hasText: "Line" }).waitFor();
    await text.fill(good.replace("X-A: b", "X-A: c"));
    await click("Review and save");
    await page.locator(".diff .add", { hasText: "X-A: c" }).waitFor();
    await page.locator(".diff .del", { hasText: "X-A: b" }).waitFor();
    await inspect("editor-diff");
    await click("Save");
    await page.getByText("Saved.").waitFor();
    await click("Form");
    await page.getByLabel(/^uri\b/).first().waitFor();
    await inspect("editor-form");
  });

  await step("what refers to an upstream is shown before it is deleted", async () => {
    await at("/upstreams/u1");
    await click("Delete…");
    await page.getByRole("link", { name: "route r1" }).waitFor();
    assert.equal(await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).isDisabled(), true);
    await click("Keep");
  });

  await step("a tap shows requests", async () => {
    await at("/tap");
    await page.getByLabel("Route", { exact: true }).fill("r1");
    await page.getByLabel("Request headers (secrets masked)").check();
    await click("Listen");
    const first = page.getByRole("button", { name: /GET .*\/hello\/a/ }).first();
    await first.waitFor();
    await click("Stop");
    await first.click();
    await page.getByText("before the upstream").waitFor();
    await page.getByText("user-agent").waitFor();
    await inspect("tap");
  });

  await step("a request is explained", async () => {
    await at("/explain");
    await page.getByLabel("URL or path").fill("/hello/a");
    await page.getByRole("main").getByRole("button", { name: "Explain" }).click();
    await page.getByRole("region", { name: "Result" }).getByRole("link", { name: "r1" }).waitFor();
    await inspect("explain");
  });

  await step("the history shows differences and rolls back", async () => {
    await at("/history");
    await page.locator("tbody button").first().click();
    await page.locator(".diff .add", { hasText: "X-A: c" }).waitFor();
    await inspect("history");
    await click("Undo this and later…");
    await page.getByRole("dialog").locator(".diff .add", { hasText: "X-A: b" }).waitFor();
    await click("Roll back");
    await page.getByText("is restored").waitFor();
    await at("/health");
    await page.getByText("No upstream has health checks").waitFor();
    await inspect("health");
  });

  await step("the keyboard leads", async () => {
    await page.keyboard.press("g");
    await page.keyboard.press("r");
    await page.getByRole("heading", { name: /^Routes/ }).waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await click("Close");
  });

  await step("a phone's width is enough", async () => {
    await page.setViewportSize({ width: 360, height: 740 });
    for (const [path, name] of [["/", "overview"], ["/routes", "routes"], ["/routes/r1", "route"], ["/routes/r1/edit", "editor"], ["/tap", "tap"]]) {
      await at(path);
      await page.waitForTimeout(1500);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= 360, `${path} is ${width} px wide`);
      await inspect(`phone-${name}`);
    }
  });

  await step("signing out ends the session", async () => {
    await page.setViewportSize({ width: 1280, height: 900 });
    await click("Sign out");
    await page.getByLabel("Admin key").waitFor();
    const status = await page.evaluate(() => fetch("/apisix/admin/routes").then((answer) => answer.status));
    assert.equal(status, 401);
  });

  assert.deepEqual(wrong, [], `the browser logged ${wrong.slice(0, 3).join("; ").slice(0, 400)}`);
} finally {
  traffic = false;
  await browser.close();
}
