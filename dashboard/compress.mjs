// Compresses the built files, which the gateway compiles in as they are sent. The time stamp of gzip is
// zero, so that the same input makes the same bytes.
import { readFileSync, readdirSync, unlinkSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const most = 180 * 1024;
let total = 0;
for (const name of readdirSync("dist")) {
  if (name.endsWith(".gz")) continue;
  const packed = gzipSync(readFileSync(`dist/${name}`), { level: 9 });
  total += packed.length;
  writeFileSync(`dist/${name}.gz`, packed);
  unlinkSync(`dist/${name}`);
  console.log(`${name}.gz ${packed.length}`);
}
if (total > most) {
  console.error(`the dashboard has ${total} bytes, above ${most}`);
  process.exit(1);
}
