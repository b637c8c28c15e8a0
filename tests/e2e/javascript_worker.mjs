// A service that hands jobs to Tally, as an outbox does: `node javascript_worker.mjs API FOLDER JOBS`. It may be killed at
// any moment. `cursor` is the next job; a job that is handed over twice has the same key. Each line says what happened.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { folder } from "../../tally/javascript/node.js";
import { Tally } from "../../tally/javascript/tally.js";

// Pauses of a tenth: the test is about what happens, and not about how long it takes.
const wait = setTimeout;
globalThis.setTimeout = (run, ms, ...more) => wait(run, ms / 10, ...more);

const [api, path, jobs] = process.argv.slice(2);
const cursor = join(path, "..", "cursor");
const tally = new Tally({ api, storage: folder(path) });
tally.addEventListener("change", ({ detail: { outcome } }) => outcome && console.log(outcome.state));
let next = 0;
try {
  next = Number(readFileSync(cursor, "utf8"));
} catch {}
for (; next < Number(jobs); next++) {
  tally.increment("plays", "killed", { key: `job-${String(next).padStart(24, "0")}` });
  writeFileSync(cursor, String(next + 1));
  console.log("handed over");
  await new Promise(setImmediate);
}
