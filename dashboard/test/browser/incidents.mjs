// When something burns: a node breaks, and is red on every page that shows it.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { pause } from "./page.mjs";

const { ADMIN, PROXY, KEY, UPSTREAM } = process.env;

export async function incidents(opened) {
  const { page, step, at, inspect, fresh } = opened;
  // Requests to /hang are answered at the end.
  const held = [];
  const node = createServer((request, answer) => (request.url.endsWith("/hang") ? held.push(answer) : answer.end("fine")));
  await new Promise((done) => node.listen(0, "127.0.0.1", done));
  const address = `127.0.0.1:${node.address().port}`;
  const put = async (path, value) => {
    const answer = await fetch(`http://${ADMIN}/apisix/admin/${path}`, { method: "PUT", headers: { "X-API-KEY": KEY }, body: JSON.stringify(value) });
    assert.ok(answer.ok, `${path}: ${answer.status}`);
  };
  await put("upstreams/checked", {
    nodes: { [address]: 1, [UPSTREAM]: 1 },
    checks: { active: { http_path: "/", healthy: { interval: 1, successes: 1, http_statuses: [200, 404] }, unhealthy: { interval: 1, tcp_failures: 1, http_failures: 1 } } },
  });
  await put("routes/checked", { uri: "/checked/*", upstream_id: "checked" });
  await put("upstreams/bare", { nodes: { [address]: 1 }, retries: 0 });
  await put("routes/bare", { uri: "/bare/*", upstream_id: "bare" });
  await step("requests in flight of a node are on the page of its route", async () => {
    const waiting = [1, 2, 3].map(() => fetch(`http://${PROXY}/bare/hang`));
    await at("/routes/bare");
    const row = page.locator("tr", { hasText: address });
    const cell = (text) => row.locator("td:nth-child(5)", { hasText: text }).waitFor();
    await cell(/^3$/);
    held.forEach((answer) => answer.end("late"));
    assert.deepEqual((await Promise.all(waiting)).map((answer) => answer.status), [200, 200, 200]);
    await cell(/^0$/);
  });

  await step("a node that accepts connections and does not answer is not shown as healthy", async () => {
    const silent = createServer(() => {});
    await new Promise((done) => silent.listen(0, "127.0.0.1", done));
    const hanging = `127.0.0.1:${silent.address().port}`;
    // A probe by TCP finds the node healthy.
    await put("upstreams/silent", { nodes: { [hanging]: 1 }, retries: 0, checks: { active: { type: "tcp", healthy: { interval: 1, successes: 1 }, unhealthy: { interval: 1 } } } });
    await put("routes/silent", { uri: "/silent/*", upstream_id: "silent" });
    const closing = new AbortController();
    const waiting = [1, 2].map(() => fetch(`http://${PROXY}/silent/x`, { signal: closing.signal }).catch(() => {}));
    try {
      await at("/routes/silent");
      await page.locator("tr", { hasText: hanging }).locator(".tag.warn", { hasText: "no responses" }).waitFor();
      await at("/health");
      const row = page.locator("section", { hasText: "upstreams/silent" }).locator("tr", { hasText: hanging });
      await row.locator(".tag.warn", { hasText: "no responses" }).waitFor();
      await inspect("health-silent", { shifts: false });
      await fresh("/");
      await page.locator("tr", { hasText: hanging }).locator('[aria-label="no responses"]').waitFor();
    } finally {
      closing.abort();
      await Promise.all(waiting);
      silent.closeAllConnections();
      silent.close();
    }
  });

  opened.traffic = true;
  void (async () => {
    while (opened.traffic) {
      await fetch(`http://${PROXY}/checked/x`).catch(() => {});
      await fetch(`http://${PROXY}/bare/x`).catch(() => {});
      await pause(50);
    }
  })();

  await step("healthy nodes are green, with the log of their probes", async () => {
    await fresh("/health");
    const row = page.locator("section", { hasText: "upstreams/checked" }).locator("tr", { hasText: address });
    await row.locator(".tag.good", { hasText: "healthy" }).waitFor();
    await row.locator("summary").click();
    await row.locator("details time").first().waitFor();
    await inspect("health", { shifts: false });
  });

  await step("a broken node is red on the pages of health, overview and route", async () => {
    node.closeAllConnections();
    await new Promise((done) => node.close(done));
    await at("/health");
    const row = page.locator("section", { hasText: "upstreams/checked" }).locator("tr", { hasText: address });
    await row.locator(".tag.bad", { hasText: "unhealthy" }).waitFor();
    await inspect("health-broken", { shifts: false });
    await fresh("/");
    await page.locator("li", { hasText: "upstreams/checked" }).locator(".tag.bad", { hasText: "unhealthy" }).waitFor();
    await page.locator("tr", { hasText: address }).locator('[aria-label="failing"]').waitFor();
    const red = await page.locator('[aria-label="failing"]').first().evaluate((dot) => getComputedStyle(dot).backgroundColor);
    assert.match(red, /^rgb\((1[5-9]\d|2\d\d), \d{1,2}, \d{1,2}\)$/);
    await page.locator("section", { hasText: "Routes with errors" }).getByRole("link", { name: "bare" }).waitFor();
    await inspect("overview-broken", { shifts: false });
    await at("/routes/checked");
    await page.locator("tr", { hasText: address }).locator(".tag.bad").waitFor();
    await inspect("route-broken", { shifts: false });
  });
  opened.traffic = false;
}
