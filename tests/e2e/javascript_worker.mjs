// A service that counts jobs with Tally: `node javascript_worker.mjs API FOLDER JOBS`. A test kills the service at any
// moment. The file `cursor`, beside FOLDER, has the number of the next job. A repeated job has the same key. Prints a
// line for each job and outcome.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { folder } from "../../tally/javascript/node.js";
import { Tally } from "../../tally/javascript/tally.js";

// Timers run ten times as fast, so that the test is short.
const wait = setTimeout;
globalThis.setTimeout = (run, ms, ...more) => wait(run, ms / 10, ...more);

const [api, folderPath, jobs] = process.argv.slice(2);
const cursor = join(folderPath, "..", "cursor");
const tally = new Tally({ api, storage: folder(folderPath) });
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
