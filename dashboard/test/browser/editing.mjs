// The editor: errors at their lines, differences, forms and cards, previews, deleting, the history.
import assert from "node:assert/strict";

const { ADMIN, KEY, UPSTREAM } = process.env;

export async function editing({ page, step, at, click, editor, inspect, fresh }) {
  const loaded = (part) => page.waitForFunction((part) => document.querySelector("textarea")?.value.includes(part), part);

  await step("the server's error is at its line", async () => {
    await fresh("/routes/r1/edit");
    const text = editor("route");
    await loaded("upstream_id");
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
    await inspect("editor-diff", { shifts: false });
    await click("Save");
    await page.getByText("Saved.").waitFor();
  });

  await step("the form and the text are one, and plugins are chosen from cards", async () => {
    await page.getByLabel(/^priority\b/).fill("7");
    await page.getByLabel(/^priority\b/).blur();
    await loaded("priority: 7");
    await page.getByText("among routes with the same path").waitFor();
    await click("Add a plugin…");
    await page.getByLabel("Search plugins").fill("limit-count");
    const card = page.getByRole("button", { name: /^limit-count/ });
    await card.getByText("Limits requests per window of time").waitFor();
    await inspect("plugin-cards", { shifts: false });
    await card.click();
    await loaded("limit-count");
    await page.locator("summary", { hasText: "limit-count" }).click();
    await page.getByLabel(/^count\b/).fill("5");
    await page.getByLabel(/^time_window\b/).fill("60");
    await page.getByLabel(/^time_window\b/).blur();
    await loaded("count: 5");
    await inspect("editor-form", { shifts: false });
  });

  await step("what a change would make of requests is shown before it is saved", async () => {
    await click("Review and save");
    const dialog = page.getByRole("dialog", { name: "Review the change" });
    await dialog.getByText("What would this change?").click();
    assert.equal(await dialog.getByLabel("Requests, one a line").inputValue(), "GET /hello/x");
    await dialog.getByLabel("Requests, one a line").fill("GET /hello/x\nGET /other");
    await click("Explain before and after");
    await dialog.locator("td .add", { hasText: "limit-count" }).waitFor();
    await dialog.getByText("no difference").waitFor();
    await inspect("editor-preview", { shifts: false });
    await click("Back");
    const good = await editor("route").inputValue();
    await editor("route").fill(JSON.stringify({ uri: "/hello/*", upstream_id: "u1", plugins: { csrf: { key: "$secret://vault/1/a/b" } } }));
    await click("Review and save");
    await dialog.getByText("What would this change?").click();
    await click("Explain before and after");
    await dialog.getByText("whether it would be served is unknown").waitFor();
    await dialog.locator("td .add", { hasText: "unknown: routes/r1 needs a secret" }).waitFor();
    await dialog.getByText("note: host names and secrets were not looked up").first().waitFor();
    await click("Back");
    await editor("route").fill(good);
    await click("Discard changes");
  });

  await step("a resource is duplicated and exported", async () => {
    const saved = page.waitForEvent("download");
    await click("Export");
    assert.equal((await saved).suggestedFilename(), "routes-r1.yaml");
    await click("Duplicate");
    await page.getByRole("heading", { name: "Routes / new" }).waitFor();
    await loaded("/hello/*");
    assert.doesNotMatch(await editor("route").inputValue(), /create_time|^id:/m);
  });

  await step("the nodes of an upstream are edited in the form", async () => {
    await at("/upstreams/u1");
    await loaded(UPSTREAM);
    await page.getByLabel("Weight of node 1", { exact: true }).fill("3");
    await page.getByLabel("Weight of node 1", { exact: true }).blur();
    await loaded(`${UPSTREAM}: 3`);
    await inspect("upstream", { shifts: false });
    await click("Discard changes");
  });

  await step("what refers to an upstream is shown before it is deleted", async () => {
    await click("Delete…");
    await page.getByRole("link", { name: "route r1" }).waitFor();
    assert.equal(await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).isDisabled(), true);
    await inspect("delete", { shifts: false });
    await click("Keep");
  });

  await step("a consumer has credentials", async () => {
    await at("/consumers/jack");
    await page.getByRole("link", { name: "New credential" }).click();
    await loaded("key-auth");
    await page.getByLabel("Id", { exact: true }).fill("phone");
    await click("Review and save");
    await click("Create");
    await page.getByRole("heading", { name: "Consumer / Credentials / phone" }).waitFor();
    await at("/consumers/jack");
    await page.getByRole("link", { name: "phone" }).waitFor();
    await inspect("consumer", { shifts: false });
  });

  await step("the history shows differences and rolls back", async () => {
    await fresh("/history");
    await page.locator("tbody tr", { hasText: "routes/r1" }).first().getByRole("button").click();
    await page.locator(".diff .add", { hasText: "X-A: c" }).waitFor();
    assert.match(await page.locator("tbody time").first().getAttribute("title"), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
    await inspect("history", { shifts: false });
    await click("Undo this and later…");
    await page.getByRole("dialog").locator(".diff .add", { hasText: "X-A: b" }).waitFor();
    await click("Roll back");
    await page.getByText("is restored").waitFor();
  });

  await step("a change that awaits confirmation counts down and is kept", async () => {
    const made = await fetch(`http://${ADMIN}/apisix/admin/routes/unsure`, {
      method: "PUT",
      headers: { "X-API-KEY": KEY, "X-Sluice-Confirm": "5m" },
      body: JSON.stringify({ uri: "/unsure", upstream: { nodes: { [UPSTREAM]: 1 } } }),
    });
    assert.equal(made.status, 201);
    await at("/");
    await page.getByText("A change waits to be confirmed").waitFor();
    await at("/history");
    const timer = page.getByRole("timer");
    await timer.waitFor();
    assert.match(await timer.innerText(), /^[45] min$/);
    await inspect("unconfirmed", { shifts: false });
    await click("Keep it");
    await page.getByText("The change is confirmed.").waitFor();
    await timer.waitFor({ state: "detached" });
  });

  await step("other kinds have lists and editors", async () => {
    for (const [path, title] of [["ssls", "Certificates"], ["global_rules", "Global rules"], ["plugin_metadata", "Plugin metadata"], ["secrets", "Secret managers"], ["protos", "Protos"]]) {
      await at(`/${path}`);
      await page.getByRole("heading", { name: new RegExp(`^${title}`) }).waitFor();
      await page.getByText(/ yet\. /).waitFor();
      await at(`/${path}/new`);
      await page.getByRole("button", { name: "Review and save" }).waitFor();
    }
  });

  await step("a phone's width is enough", async () => {
    await page.setViewportSize({ width: 360, height: 740 });
    for (const [path, name] of [["/", "overview"], ["/routes", "routes"], ["/routes/r1", "route"], ["/routes/r1/edit", "editor"], ["/tap", "tap"], ["/explain", "explain"], ["/history", "history"], ["/health", "health"]]) {
      await at(path);
      await page.waitForTimeout(700);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= 360, `${path} is ${width} px wide`);
      await inspect(`phone-${name}`, { shifts: false });
    }
    await page.setViewportSize({ width: 1280, height: 900 });
  });
}
