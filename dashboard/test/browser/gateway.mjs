// A gateway of a part's own.
import { spawn } from "node:child_process";
import { openSync, readFileSync } from "node:fs";
import { createServer } from "node:net";

const { SLUICE } = process.env;

export async function port() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

/** Starts a gateway on the configuration in a folder, and waits for its page at `base`. Its output is `FOLDER/log`. */
export async function start(folder, base) {
  const log = openSync(`${folder}/log`, "a");
  const gateway = spawn(SLUICE, ["run", folder, "--data", `${folder}/data`], { stdio: ["ignore", log, log] });
  for (let tries = 0; tries < 200; tries += 1) {
    if (await fetch(base).then((answer) => answer.ok, () => false)) return gateway;
    await new Promise((done) => setTimeout(done, 100));
  }
  gateway.kill("SIGKILL");
  throw new Error(`the gateway in ${folder} does not start: ${readFileSync(`${folder}/log`, "utf8").slice(-500)}`);
}
