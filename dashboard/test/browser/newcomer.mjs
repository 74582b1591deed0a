// The README's five minutes with the mouse, in forms alone: a newcomer starts the sample and follows its message.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { port, start } from "./gateway.mjs";
import { pause } from "./page.mjs";

const { DIR, ROOT } = process.env;
const folder = `${DIR}/newcomer`;

export async function newcomer({ page, step, click, inspect }) {
  const [proxy, admin, control, metrics] = [await port(), await port(), await port(), await port()];
  const site = createServer((_, answer) => answer.end("hello from behind\n"));
  await new Promise((done) => site.listen(0, "127.0.0.1", done));
  // The sample of `cargo x run`, on other ports.
  const sample = readFileSync(`${ROOT}/conf/config.yaml`, "utf8");
  const config = sample.replace("port: 9080", `port: ${proxy}`).replace("port: 9180", `port: ${admin}`);
  assert.ok(config.includes(proxy) && config.includes(admin) && config.includes("\napisix:\n"));
  mkdirSync(folder, { recursive: true });
  writeFileSync(`${folder}/config.yaml`, `${config.replace("\napisix:\n", `\napisix:\n  control:\n    ip: 127.0.0.1\n    port: ${control}\n`)}
plugin_attr:
  prometheus:
    export_addr:
      ip: 127.0.0.1
      port: ${metrics}
`);
  const gateway = await start(folder, `http://127.0.0.1:${admin}/ui/`);
  const hello = (headers = {}) => fetch(`http://127.0.0.1:${proxy}/hello`, { headers });
  const view = (name) => page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
  const field = (name) => page.getByRole("main").getByLabel(new RegExp(`^${name}\\b`)).first();
  const set = async (name, value) => {
    await field(name).fill(value);
    await field(name).blur();
  };
  const choose = async (plugin) => {
    await click("Add a plugin…");
    await page.getByLabel("Search plugins").fill(plugin);
    await page.getByRole("dialog", { name: "Add a plugin" }).locator("button.card", { has: page.getByText(plugin, { exact: true }) }).click();
    await page.locator("summary", { hasText: plugin }).click();
  };
  const remove = async (plugin) => {
    if (!(await page.getByRole("button", { name: `Remove ${plugin}` }).isVisible())) await page.locator("summary", { hasText: plugin }).click();
    await click(`Remove ${plugin}`);
  };
  const save = async (button) => {
    await click("Review and save");
    await click(button);
    if (button === "Save") await page.getByText("Saved.").waitFor();
    else await page.waitForURL((url) => !url.hash.includes("/new"));
  };
  const edit = async () => {
    await view("Routes");
    await page.locator("table").getByRole("link", { name: "1", exact: true }).click();
    await click("Edit");
    await field("uri").waitFor();
  };
  try {
    await step("the start message leads to the page, which opens without a key", async () => {
      await pause(200);
      const [address] = /http:\/\/\S+\/ui\//.exec(readFileSync(`${folder}/log`, "utf8")) ?? [];
      assert.equal(address, `http://127.0.0.1:${admin}/ui/`);
      await page.goto(address);
      await click("Enter");
      await page.getByRole("heading", { name: "Overview" }).waitFor();
    });

    await step("a first route is made in the form, and shows its traffic", async () => {
      await page.getByRole("link", { name: "Create the first route" }).click();
      await page.getByLabel("Id", { exact: true }).fill("1");
      await set("uri", "/hello");
      await page.getByLabel("Node 1", { exact: true }).fill(`127.0.0.1:${site.address().port}`);
      await page.getByLabel("Node 1", { exact: true }).blur();
      await inspect("newcomer-route", { shifts: false });
      await save("Create");
      const answer = await hello();
      assert.deepEqual([answer.status, await answer.text()], [200, "hello from behind\n"]);
      await view("Overview");
      await page.locator("table").getByRole("link", { name: "1", exact: true }).first().waitFor();
    });

    await step("at most three requests a minute", async () => {
      await edit();
      await choose("limit-count");
      for (const [name, value] of [["count", "3"], ["time_window", "60"], ["rejected_code", "429"]]) await set(name, value);
      await save("Save");
      const statuses = [];
      for (let at = 0; at < 4; at += 1) statuses.push((await hello()).status);
      assert.deepEqual(statuses, [200, 200, 200, 429]);
    });

    await step("a consumer with a key", async () => {
      await view("Consumers");
      await click("New consumer");
      await page.locator("summary", { hasText: "key-auth" }).click();
      await set("key", "user-key");
      await save("Create");
      await edit();
      await remove("limit-count");
      await choose("key-auth");
      await save("Save");
      assert.deepEqual([(await hello()).status, (await hello({ apikey: "user-key" })).status], [401, 200]);
    });

    await step("metrics under APISIX's names", async () => {
      await view("Global rules");
      await click("New global rule");
      await page.getByLabel("Id", { exact: true }).fill("1");
      await remove("request-id");
      await choose("prometheus");
      await save("Create");
      assert.equal((await hello({ apikey: "user-key" })).status, 200);
      const text = await (await fetch(`http://127.0.0.1:${metrics}/apisix/prometheus/metrics`)).text();
      assert.match(text, /^apisix_http_status\{code="200",route="1"/m);
    });
  } finally {
    gateway.kill("SIGKILL");
    site.close();
  }
}
