// The first minutes: signing in, creating resources, seeing traffic, tapping and explaining requests.
import assert from "node:assert/strict";
import { pause } from "./page.mjs";

const { ADMIN, PROXY, UPSTREAM, KEY } = process.env;

/** Names that try to be markup, a template, or another order of reading. */
export const hostile = `<img src=x onerror="window.hacked=1">{{7*7}}\u202Egnp.exe`;
const long = `/${"long-<b>".repeat(511)}`;

export async function everyday(opened) {
  const { page, step, at, click, editor, inspect, fresh, signIn } = opened;

  await step("a wrong key is refused, the right one signs in", async () => {
    await page.goto(`http://${ADMIN}/ui/`);
    await signIn("wrong");
    await page.getByText("this is not an admin key").waitFor();
    await inspect("sign-in");
    await signIn(KEY);
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    assert.equal(await page.evaluate(() => document.cookie), "", "scripts must not see the cookie");
    assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage })), "{}");
  });

  await step("empty lists say what to do next", async () => {
    await at("/services");
    await page.getByText("No services yet").waitFor();
    await inspect("empty");
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
      ["routes", "route", "r1", { name: hostile.slice(0, 100), uri: "/hello/*", labels: { team: "blue" }, upstream_id: "u1", plugins: { "response-rewrite": { headers: { set: { "X-A": "b" } } } } }],
      ["routes", "route", "r2", { name: "a long path", uri: long.slice(0, 4096), status: 0, upstream_id: "u1" }],
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

  opened.traffic = true;
  void (async () => {
    for (let at = 0; opened.traffic; at += 1) {
      await fetch(`http://${PROXY}${at % 5 ? "/hello/a" : "/nothing"}`).catch(() => {});
      await pause(25);
    }
  })();

  await step("the charts move, and share a crosshair", async () => {
    await fresh("/");
    await page.waitForFunction(() => Number.parseFloat(document.querySelector('[data-figure="rate"]')?.textContent ?? "0") > 5);
    await page.locator("table a", { hasText: "r1" }).first().waitFor();
    const rate = () => page.locator('b[data-line="requests"]').innerText();
    const before = await page.locator("canvas").first().evaluate((canvas) => canvas.toDataURL());
    await pause(3000);
    assert.ok(Number.parseFloat(await rate()) > 5, await rate());
    assert.notEqual(await page.locator("canvas").first().evaluate((canvas) => canvas.toDataURL()), before);
    await page.locator(".u-over").first().hover({ position: { x: 200, y: 60 } });
    // As shares of the charts' widths, which differ.
    const cursors = await page.locator(".u-cursor-x").evaluateAll((all) =>
      all.map((one) => Number.parseFloat(one.style.transform.slice("translate(".length)) / one.parentElement.clientWidth));
    assert.ok(cursors.length >= 5 && cursors.every((one) => Math.abs(one - cursors[0]) < 0.02), `cursors at ${cursors}`);
    await page.mouse.move(5, 5);
    // Its upstream answers after 3 ms.
    const slowest = await page.locator('b[data-latency="slowest within"]').innerText();
    assert.ok(Number.parseFloat(slowest) >= 4, slowest);
    await inspect("overview");
    await page.getByRole("button", { name: "24 h" }).click();
    assert.equal(await page.getByRole("button", { name: "24 h" }).getAttribute("aria-pressed"), "true");
  });

  await step("hostile and long names are shown as text", async () => {
    await fresh("/routes");
    await page.getByText(hostile.slice(0, 100)).waitFor();
    await page.getByText("long-<b>long-<b>").first().waitFor();
    await inspect("routes");
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator("main img, main td b").count(), 0);
  });

  await step("search, filters and order are the server's", async () => {
    await page.keyboard.press("/");
    await page.keyboard.type("no such thing");
    await page.getByText("Nothing matches").waitFor();
    await page.getByRole("searchbox").fill("HELLO");
    await page.locator("table a", { hasText: "r1" }).waitFor();
    await page.getByRole("searchbox").fill("");
    await page.getByLabel("Status").selectOption("off");
    await page.locator("table a", { hasText: "r1" }).waitFor({ state: "detached" });
    await page.locator("table a", { hasText: "r2" }).waitFor();
    await page.getByLabel("Status").selectOption("any status");
    await page.getByLabel("Label", { exact: true }).fill("team");
    await page.locator("table a", { hasText: "r2" }).waitFor({ state: "detached" });
    await page.getByLabel("Label", { exact: true }).fill("");
    for (const [times, first] of [[1, "r1"], [2, "r2"]]) {
      await page.getByRole("button", { name: /^Id/ }).click();
      await page.waitForFunction((first) => document.querySelector("tbody a")?.textContent === first, first, { timeout: 5000 });
      assert.equal(await page.locator("th[aria-sort]").first().getAttribute("aria-sort"), times === 1 ? "ascending" : "descending");
    }
  });

  await step("the page of a route shows its chart, plugins and nodes", async () => {
    await fresh("/routes/r1");
    await page.getByText("response-rewrite").first().waitFor();
    await page.getByText(UPSTREAM).first().waitFor();
    // A name that is read from the right does not reorder the text behind it.
    const [name, summary] = await page.locator("p:has(> b) > *").evaluateAll((all) => all.map((one) => one.getBoundingClientRect()));
    assert.ok(summary.left >= name.right - 1 || summary.top >= name.bottom, `${summary.left} is before ${name.right}`);
    await page.waitForFunction(() => Number.parseFloat(document.querySelector('b[data-line="requests"]')?.textContent ?? "0") > 1);
    await inspect("route");
  });

  await step("a tap shows requests, pauses, and leads to an explanation", async () => {
    await at("/tap");
    await page.getByLabel("Route", { exact: true }).fill("r1");
    await page.getByLabel("Request headers (secrets masked)").check();
    await click("Listen");
    const first = page.getByRole("button", { name: /GET .*\/hello\/a/ }).first();
    await first.waitFor();
    await click("Pause");
    const rows = await page.locator("tbody tr").count();
    await page.getByRole("button", { name: /Continue \([1-9]/ }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), rows);
    await page.getByRole("button", { name: /Continue/ }).click();
    await page.waitForFunction((rows) => document.querySelectorAll("tbody tr").length > rows, rows);
    await click("Stop");
    await first.click();
    await page.getByText("before the upstream").waitFor();
    await page.getByText("user-agent").waitFor();
    await inspect("tap", { shifts: false });
    await page.getByRole("link", { name: "Explain this request" }).click();
    await page.getByRole("region", { name: "Result" }).getByRole("link", { name: "r1" }).waitFor();
  });

  await step("a hostile path in a tap is text", async () => {
    await at("/tap");
    await page.getByLabel("Status").fill("404");
    await click("Listen");
    await page.getByText("listening").waitFor();
    const path = `/%3Cimg%20src=x%20onerror=%22hacked=1%22%3E%E2%80%AE${"a".repeat(4000)}`;
    await fetch(`http://${PROXY}${path}`);
    await page.getByText("aaaaaaaaaaaaaaaa").first().waitFor();
    await click("Stop");
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 1280, `${width} px wide`);
  });

  await step("a request is explained", async () => {
    await at("/explain");
    await page.getByLabel("URL or path").fill("/hello/a");
    await page.getByRole("main").getByRole("button", { name: "Explain" }).click();
    await page.getByRole("region", { name: "Result" }).getByRole("link", { name: "r1" }).waitFor();
    await inspect("explain", { shifts: false });
  });

  await step("the keyboard leads", async () => {
    await page.locator("main h1").click();
    await page.keyboard.press("g");
    await page.keyboard.press("r");
    await page.getByRole("heading", { name: /^Routes/ }).waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await inspect("keyboard", { shifts: false });
    await click("Close");
  });
}
