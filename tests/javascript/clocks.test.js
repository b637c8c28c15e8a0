// Tests of clocks that are set, and of machines that sleep. Node's monotonic clock runs while the machine sleeps. A
// browser's monotonic clock may stop.

import assert from "node:assert/strict";
import os from "node:os";
import { beforeEach, mock, test } from "node:test";
import { HOUR_MS, World, answerLost, json, neverAnswers, requestLost } from "./world.js";

const DAY_MS = 24 * HOUR_MS;
const SINCE_1970_MS = 56 * 365 * DAY_MS; // the clock of a world begins in 2026

/** Makes a world with a machine. `run` and `sleep` let time pass, while the machine runs or sleeps, and run no timer.
 * `moveClock` sets the machine's clock. `kind`: "node" or "browser". */
const machine = (kind) => {
  const world = new World();
  let [ranMs, sleptMs] = [0, 0];
  mock.restoreAll();
  mock.method(os, "uptime", () => (ranMs + sleptMs) / 1000);
  mock.method(performance, "now", () => ranMs);
  if (kind === "node") delete globalThis.document;
  const run = (ms) => ((ranMs += ms), world.moveClock(ms));
  const sleep = (ms) => ((sleptMs += ms), world.moveClock(ms));
  return Object.assign(world, { run, sleep });
};
beforeEach(() => mock.restoreAll());

const JUMPS = { "by two days": 2 * DAY_MS, "back by two days": -2 * DAY_MS, "from 1970": SINCE_1970_MS, "to 1970": -SINCE_1970_MS };
for (const kind of ["node", "browser"])
  for (const [jump, ms] of Object.entries(JUMPS)) {
    if (kind === "browser" && jump === "by two days") continue; // A browser cannot tell this from a sleep.
    test(`in a ${kind}, a clock that is set ${jump} loses no play whose request was lost`, async () => {
      const world = machine(kind);
      world.server.faults = [requestLost];
      const page = world.openTab();
      const outcome = page.increment("plays", "9f3a");
      await world.runPending();
      world.run(2000);
      world.moveClock(ms);
      page.retry(); // the timers of this world run by the clock that was set, so a pause might not end
      assert.equal((await world.resultOf(outcome)).state, "counted");
      assert.equal(world.server.counts.get("9f3a"), 1);
    });
    test(`in a ${kind}, a clock that is set ${jump} after an answer loses no later play`, async () => {
      const world = machine(kind);
      const page = world.openTab();
      await world.resultOf(page.increment("plays", "first"));
      world.moveClock(ms);
      world.server.aheadMs -= ms;
      world.server.faults = [requestLost];
      const outcome = page.increment("plays", "9f3a");
      await world.runPending();
      world.run(2000);
      assert.equal((await world.resultOf(outcome)).state, "counted");
    });
  }

for (const [kind, setHours] of [["node", 0], ["node", -30], ["browser", 0]])
  test(`in a ${kind}, a change whose receipt expired during a sleep is in doubt, and is not sent again (clock set by ${setHours} hours)`, async () => {
    const world = machine(kind);
    world.server.faults = [answerLost];
    const outcome = world.openTab().increment("plays", "9f3a");
    await world.runPending();
    world.sleep(30 * HOUR_MS);
    world.moveClock(setHours * HOUR_MS);
    world.server.receipts.clear();
    assert.equal((await world.resultOf(outcome)).state, "doubt");
    assert.equal(world.server.counts.get("9f3a"), 1);
  });

test("the first answer corrects when earlier changes were sent, so a clock that is set later changes no age", async () => {
  const world = machine("browser");
  world.server.aheadMs = 2 * DAY_MS;
  world.server.faults = ({ path }) => (path.includes("9f3a") ? requestLost : undefined);
  const page = world.openTab();
  const outcome = page.increment("plays", "9f3a");
  await world.runPending();
  const [{ sent: sentByClock }] = world.shared.entries;
  await world.resultOf(page.increment("plays", "other"));
  const [corrected] = world.shared.entries;
  assert.ok(corrected.timed && Math.abs(corrected.sent - sentByClock - 2 * DAY_MS) < 5000, JSON.stringify(corrected));
  world.moveClock(2 * DAY_MS);
  Object.assign(world.server, { aheadMs: 0, faults: [] });
  assert.equal((await world.resultOf(outcome)).state, "counted");
});

test("a user's page corrects the time at which an earlier page sent an anonymous change", async () => {
  const world = machine("browser");
  const signedIn = { user: () => "ann", token: () => Promise.reject(new Error("no session")) };
  world.server.faults = [requestLost];
  world.openTab().increment("plays", "9f3a");
  await world.runPending();
  const next = world.closeTabs();
  next.server.faults = ({ path }) => (path.includes("9f3a") || path.startsWith("/receipts") ? requestLost : undefined);
  const page = next.openTab(signedIn);
  await next.resultOf(page.increment("plays", "other"));
  assert.deepEqual(next.shared.entries.map(({ id, timed }) => [id, timed]), [["9f3a", true]]);
});

for (const kind of ["node", "browser"])
  test(`in a ${kind}, a clock that is set after the storage was cleared loses no play whose request was lost`, async () => {
    const world = machine(kind);
    const page = world.openTab();
    // Neither the change nor the request for its receipt gets an answer.
    world.server.faults = ({ path }) => (path.includes("9f3a") || path.startsWith("/receipts")) && requestLost;
    const outcome = page.increment("plays", "9f3a");
    await world.runPending();
    world.shared.items.clear();
    // The answer corrects the time at which the lost request was sent.
    await world.resultOf(page.increment("plays", "other"));
    world.moveClock(-2 * DAY_MS);
    world.server.aheadMs += 2 * DAY_MS;
    world.server.faults = [];
    page.retry();
    assert.equal((await world.resultOf(outcome)).state, "counted");
    assert.equal(world.server.counts.get("9f3a"), 1);
  });

test("a change that was denied two days ago, and that another tab has just sent, does not end in doubt", async () => {
  const world = machine("browser");
  mock.method(console, "warn", () => {});
  world.server.faults = () => () => json(403, {});
  const [page, otherTab] = [world.openTab(), world.openTab()];
  page.increment("plays", "9f3a");
  await world.until(() => [page, otherTab].every((tab) => tab.waiting()[0]?.why === "denied"));
  world.run(2 * DAY_MS);
  world.server.faults = [neverAnswers];
  otherTab.retry();
  await world.runPending();
  page.retry();
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.counts.get("9f3a"), 1);
});
