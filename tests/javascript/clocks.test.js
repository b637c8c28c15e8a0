// Clocks that are set, and machines that sleep. Node knows how long a machine has run; a browser's clock may stop meanwhile.

import assert from "node:assert/strict";
import os from "node:os";
import { beforeEach, mock, test } from "node:test";
import { HOUR_MS, lost, unsent, World } from "./world.js";

const DAY_MS = 24 * HOUR_MS;
const YEARS_MS = 56 * 365 * DAY_MS;

/** A world whose machine sleeps and has its clock set. In Node there is no document. */
const machine = (kind) => {
  const world = new World();
  let [ranMs, sleptMs] = [0, 0];
  mock.restoreAll();
  mock.method(os, "uptime", () => (ranMs + sleptMs) / 1000);
  mock.method(performance, "now", () => ranMs);
  if (kind === "node") delete globalThis.document;
  const runs = (ms) => ((ranMs += ms), world.later(ms));
  const sleeps = (ms) => ((sleptMs += ms), world.later(ms));
  return Object.assign(world, { runs, sleeps });
};
beforeEach(() => mock.restoreAll());

const JUMPS = { "by two days": 2 * DAY_MS, "back by two days": -2 * DAY_MS, "from 1970": YEARS_MS, "to 1970": -YEARS_MS };
for (const kind of ["node", "browser"])
  for (const [what, ms] of Object.entries(JUMPS)) {
    if (kind === "browser" && what === "by two days") continue; // it may have slept
    test(`${kind}: a clock that is set ${what} loses no play that never came`, async () => {
      const world = machine(kind);
      world.server.plan = [unsent];
      const page = world.tab();
      const ended = page.increment("plays", "9f3a");
      await world.now();
      world.runs(2000);
      world.later(ms);
      page.retry(); // the timers of this world go by the clock that was set
      assert.equal((await world.got(ended)).state, "counted");
      assert.equal(world.server.counts.get("9f3a"), 1);
    });
    test(`${kind}: a clock that is set ${what} after an answer loses no later play`, async () => {
      const world = machine(kind);
      const page = world.tab();
      await world.got(page.increment("plays", "first"));
      world.later(ms);
      world.server.aheadMs -= ms;
      world.server.plan = [unsent];
      const ended = page.increment("plays", "9f3a");
      await world.now();
      world.runs(2000);
      assert.equal((await world.got(ended)).state, "counted");
    });
  }

for (const [kind, setMs] of [["node", 0], ["node", -30 * HOUR_MS], ["browser", 0]])
  test(`${kind}: what was sent before the machine slept for longer than receipts live is not sent again (set ${setMs})`, async () => {
    const world = machine(kind);
    world.server.plan = [lost];
    const ended = world.tab().increment("plays", "9f3a");
    await world.now();
    world.sleeps(30 * HOUR_MS);
    world.later(setMs);
    world.server.receipts.clear();
    assert.equal((await world.got(ended)).state, "doubt");
    assert.equal(world.server.counts.get("9f3a"), 1);
  });

test("the first answer dates what was sent before it: a clock that is set later changes no age", async () => {
  const world = machine("browser");
  world.server.aheadMs = 2 * DAY_MS;
  world.server.plan = ({ path }) => (path.includes("9f3a") ? unsent : undefined);
  const page = world.tab();
  const ended = page.increment("plays", "9f3a");
  await world.now();
  const [{ sent }] = world.shared.entries;
  await world.got(page.increment("plays", "other"));
  const [dated] = world.shared.entries;
  assert.ok(dated.timed && Math.abs(dated.sent - sent - 2 * DAY_MS) < 5000, JSON.stringify(dated));
  world.later(2 * DAY_MS);
  Object.assign(world.server, { aheadMs: 0, plan: [] });
  assert.equal((await world.got(ended)).state, "counted");
});

test("a page dates what an earlier page left for another user", async () => {
  const world = machine("browser");
  const signedIn = { user: () => "ann", token: () => Promise.reject(new Error("no session")) };
  world.server.plan = [unsent];
  world.tab().increment("plays", "9f3a");
  await world.now();
  const next = world.close();
  next.server.plan = ({ path }) => (path.includes("9f3a") || path.startsWith("/receipts") ? unsent : undefined);
  const page = next.tab(signedIn);
  await next.got(page.increment("plays", "other"));
  assert.deepEqual(next.shared.entries.map(({ id, timed }) => [id, timed]), [["9f3a", true]]);
});
