// A gateway of its own that restarts, changes its key, and has ten thousand routes, while the page is open.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { port, start as startIn } from "./gateway.mjs";

const { SLUICE, DIR } = process.env;
const folder = `${DIR}/other`;

export async function outages({ page, step, inspect, signIn, click }) {
  const [proxy, admin, control] = [await port(), await port(), await port()];
  const base = `http://127.0.0.1:${admin}/ui/`;
  mkdirSync(folder, { recursive: true });
  const configure = (key) =>
    writeFileSync(`${folder}/config.yaml`, `apisix:
  node_listen: [{ip: 127.0.0.1, port: ${proxy}}]
  ssl: {enable: false}
  control:
    ip: 127.0.0.1
    port: ${control}
deployment:
  admin:
    admin_listen:
      ip: 127.0.0.1
      port: ${admin}
    admin_key:
      - {name: ops, key: ${key}, role: admin}
plugin_attr:
  prometheus: {enable_export_server: false}
`);
  let gateway;
  const start = async () => {
    gateway = await startIn(folder, base);
  };
  const stop = async () => {
    const ended = new Promise((done) => gateway.once("exit", done));
    gateway.kill("SIGINT");
    await ended;
  };
  try {
    configure("first-key-0123456789");
    await start();
    await step("a restart while the page is open asks for the key again, and keeps the place", async () => {
      await page.goto(base);
      await signIn("first-key-0123456789");
      await page.getByText("live", { exact: true }).waitFor();
      await stop();
      await page.getByText("waiting for the gateway").waitFor();
      await inspect("restarting", { shifts: false });
      await start();
      await page.getByLabel("Admin key").waitFor();
      await signIn("first-key-0123456789");
      await page.getByText("live", { exact: true }).waitFor();
    });

    await step("a key that is revoked while the page is open shows nothing more", async () => {
      await page.goto(`${base}#/routes`);
      await page.getByText("No routes yet").waitFor();
      await stop();
      configure("second-key-0123456789");
      await start();
      await page.getByLabel("Admin key").waitFor();
      assert.equal(await page.getByText("No routes yet").count(), 0);
      await signIn("first-key-0123456789");
      await page.getByText("this is not an admin key").waitFor();
      await signIn("second-key-0123456789");
      await page.getByText("No routes yet").waitFor();
    });

    await step("ten thousand routes are searched and paged by the server", async () => {
      const routes = Array.from({ length: 10_000 }, (_, at) => `  - {id: r${at}, name: name-${at}, uri: /r/${at}/*, upstream: {nodes: {"127.0.0.1:1": 1}}}`);
      writeFileSync(`${folder}/many.yaml`, `routes:\n${routes.join("\n")}\n#END\n`);
      const applied = spawnSync(SLUICE, ["apply", `${folder}/many.yaml`, folder, "--data", `${folder}/data`], { encoding: "utf8" });
      assert.equal(applied.status, 0, applied.stderr);
      await page.reload();
      await page.getByRole("heading", { name: "Routes 10000" }).waitFor();
      assert.ok((await page.locator("tbody tr").count()) <= 25);
      await page.getByRole("searchbox").fill("name-9876");
      await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
      await page.getByRole("searchbox").fill("");
      await page.getByRole("heading", { name: "Routes 10000" }).waitFor();
      for (let turn = 2; turn < 5; turn += 1) {
        await click("Next");
        await page.getByText(`page ${turn} of 400`).waitFor();
        await page.locator("tbody a", { hasText: new RegExp(`^r${(turn - 1) * 25}$`) }).waitFor();
        assert.ok((await page.locator("tbody tr").count()) <= 25);
      }
      await inspect("ten-thousand", { shifts: false });
    });

    await step("signing out ends the session", async () => {
      await click("Sign out");
      await page.getByLabel("Admin key").waitFor();
      const status = await page.evaluate(() => fetch("/apisix/admin/routes").then((answer) => answer.status));
      assert.equal(status, 401);
    });
  } finally {
    gateway?.kill("SIGKILL");
  }
}
