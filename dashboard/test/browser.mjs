// Drives the dashboard in a real browser, as a person would, and looks at every page with axe.
// Environment: ADMIN, PROXY and UPSTREAM are addresses, KEY the admin key, SHOTS a folder for screenshots, SLUICE the
// gateway's program, DIR an empty folder, ROOT the repository. With PART one part runs alone.
import assert from "node:assert/strict";
import { compare, described, firstEvent } from "./browser/answers.mjs";
import { open } from "./browser/page.mjs";
import { everyday } from "./browser/everyday.mjs";
import { editing } from "./browser/editing.mjs";
import { incidents } from "./browser/incidents.mjs";
import { newcomer } from "./browser/newcomer.mjs";
import { outages } from "./browser/outages.mjs";

const { ADMIN, PART } = process.env;
const opened = await open(`http://${ADMIN}/ui/`);
const api = await described(process.env);
compare(opened.page, api, opened.wrong);
const parts = { everyday, editing, incidents, newcomer, outages };
try {
  for (const [name, run] of Object.entries(parts)) {
    if (!PART || PART === name || name === "everyday") await run(opened);
  }
  if (!PART) api.value("live_event", await firstEvent(process.env, "live"));
  assert.deepEqual(opened.wrong, [], `the browser logged ${opened.wrong.slice(0, 3).join("; ").slice(0, 400)}`);
} finally {
  await opened.browser.close();
}
console.log("ok all");
process.exit(0);
