// Each change ends in bounded time and its caller learns the outcome, or the change waits and says why. A change that
// waits delays no other change, no other tab and no process.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mock, test } from "node:test";
import { pathToFileURL } from "node:url";
import { folder } from "../../tally/javascript/node.js";
import { Tally } from "../../tally/javascript/tally.js";
import { API, HOUR_MS, World, json, answerLost, refusal, token, requestLost, neverAnswers } from "./world.js";

const MINUTE_MS = 60e3;
const KEY = "playback-0000000000000001";
const ANN = { user: () => "ann", token: () => token("ann") };
const gatewayAnswer = (status) => () => json(status, { message: "Forbidden" });
/** Returns why each change of a page waits. */
const reasons = (page) => page.waiting().map((entry) => entry.why);
/** Returns the name and the text of a stored change. `name`: user (empty: anonymous), counter, id and key. */
const storedChange = (name, fields = {}) => [
  `tally1 ${API} ${name}`,
  JSON.stringify({ at: Date.now(), sent: 0, tries: 0, ...fields }),
];

for (const [failure, options] of Object.entries({
  "user throws": { user: () => null.sub },
  "user rejects": { user: () => Promise.reject(new Error("no session")) },
  "token throws": { ...ANN, token: () => null.value },
  "token rejects": { ...ANN, token: () => Promise.reject(new Error("no session")) },
  "token hangs": { ...ANN, token: neverAnswers },
  "token is an object": { ...ANN, token: () => ({ split: () => token("ann").split("."), toString: () => null.value }) },
  "token has a character that no header can hold": { ...ANN, token: () => `${token("ann")}\u0100` },
  "token has a line break": { ...ANN, token: () => `${token("ann")}\nx` },
  "token has a control character": { ...ANN, token: () => `${token("ann")}\u0001` },
  "token is of somebody else": { ...ANN, token: () => token("bob") },
}))
  test(`if ${failure}, anonymous changes count at once, in this tab and in other tabs`, async () => {
    const world = new World();
    const [page, otherTab] = [world.openTab(options), world.openTab()];
    if (page.user()) page.like("hearts", "article-1");
    else assert.throws(() => page.like("hearts", "article-1"), /nobody is signed in/);
    const outcomes = [page.increment("plays", "9f3a"), otherTab.increment("plays", "9f3a")];
    await world.runPending();
    assert.deepEqual((await Promise.all(outcomes)).map(({ state }) => state), ["counted", "counted"]);
    // If `user` gives a user, the like waits for a token.
    await world.until(() => !page.user() || reasons(page)[0] === "no-token");
  });

test("the client calls `user` and `token` only while it holds no lock", async () => {
  const world = new World();
  const held = new Set();
  const { request } = world.navigator.locks;
  world.navigator.locks.request = (name, options, run) =>
    request(name, options, async () => {
      held.add(name);
      await run();
      held.delete(name);
    });
  const locksHeld = [];
  const user = () => (locksHeld.push(held.size), "ann");
  const page = world.openTab({ user, token: () => (locksHeld.push(held.size), token("ann")) });
  const outcomes = Array.from({ length: 20 }, (_, at) => page.like("hearts", `article-${at}`));
  await world.resultOf(Promise.all(outcomes));
  assert.deepEqual([...new Set(locksHeld)], [0]);
});

test("if the lock is not granted in time, the client sends without the lock", async () => {
  const world = new World();
  // Another page holds the lock of anonymous changes for ever.
  world.navigator.locks.request("tally1 " + API + " ", { signal: new AbortController().signal }, neverAnswers);
  const startMs = Date.now();
  const page = world.openTab();
  const outcomes = Array.from({ length: 40 }, () => page.increment("plays", "9f3a"));
  await world.resultOf(Promise.all(outcomes));
  assert.ok(Date.now() - startMs < 10e3);
  assert.equal(world.server.sent.length, 40);
});

test("a missing answer delays only its own change", async () => {
  const world = new World();
  world.server.faults = ({ path }) => (path.includes("hangs") ? neverAnswers : undefined);
  const page = world.openTab();
  const otherTab = world.openTab();
  for (let nth = 0; nth < 4; nth++) page.increment("plays", "hangs");
  await world.runPending();
  const startMs = Date.now();
  await world.resultOf(Promise.all([page, otherTab].map((tab) => tab.increment("plays", "9f3a"))));
  assert.ok(Date.now() - startMs < 10e3, `${Date.now() - startMs} ms`);
  await world.until(() => Date.now() - startMs > MINUTE_MS);
  // Without pauses between its attempts, the client would send far more than 30 requests in a minute.
  assert.ok(world.server.sent.length < 30, `${world.server.sent.length} requests`);
});

test("a page that cannot store an outcome reports the outcome once, although another tab sends the change again", async () => {
  const world = new World();
  const page = world.openTab();
  const states = [];
  page.addEventListener("change", ({ detail }) => detail.outcome && states.push(detail.outcome.state));
  const denied = () => {
    throw new DOMException("denied", "SecurityError");
  };
  const denyStorageAndAnswer = (request, server) => (Object.assign(page.storage, { setItem: denied, removeItem: denied }), server.answer(request));
  world.server.faults = [denyStorageAndAnswer];
  await world.resultOf(page.increment("plays", "9f3a"));
  const otherTab = world.openTab();
  await world.until(() => !otherTab.waiting().length);
  assert.equal(world.server.sent.length, 2);
  assert.deepEqual(states, ["counted"]);
});

test("a page that thaws reports an outcome once, although another tab settled the change, too", async () => {
  const world = new World();
  const page = world.openTab();
  const states = [];
  page.addEventListener("change", ({ detail }) => detail.outcome && states.push(detail.outcome.state));
  const events = [];
  const thirdTab = world.shared.openView();
  thirdTab.listeners.push((event) => events.push(event));
  await world.resultOf(page.increment("plays", "9f3a"));
  // After the answer, the page gets the events of its own writes, as if another tab had settled the change, too.
  for (const event of events) for (const listener of page.storage.listeners) listener(event);
  await world.runPending();
  assert.deepEqual(states, ["counted"]);
  assert.deepEqual(page.waiting(), []);
});

test("if a page uses a key twice, one change after the other, both changes end as counted", async () => {
  const world = new World();
  const page = world.openTab();
  const states = [];
  page.addEventListener("change", ({ detail }) => states.push(detail.outcome?.state));
  const key = "job-000000000000000000001";
  for (let nth = 0; nth < 2; nth++) await world.resultOf(page.increment("plays", "9f3a", { key }));
  assert.deepEqual(states.filter(Boolean), ["counted", "counted"]);
});

test("a page that becomes hidden requests no lock, and requests the lock when it is shown", async () => {
  const world = new World();
  const page = world.openTab();
  await world.resultOf(page.increment("plays", "9f3a"));
  world.server.faults = () => requestLost;
  page.increment("plays", "9f3a");
  await world.runPending();
  let lockRequests = 0; // each ends without the lock, so the client sends without a lock
  world.navigator.locks.request = async () => void lockRequests++;
  document.hidden = true;
  world.fireEvent("visibilitychange");
  await world.runPending();
  assert.equal(lockRequests, 0);
  document.hidden = false;
  world.fireEvent("visibilitychange");
  await world.runPending();
  assert.equal(lockRequests, 1);
});

for (const [argument, id, options, sentId] of [
  ["a number as the id", 7, {}, "7"],
  ["a BigInt as the id", 2n ** 70n, {}, "1180591620717411303424"],
  ["a number as the key", "9f3a", { key: 7, signed: true }, "9f3a"],
  ["a BigInt as the amount", "9f3a", { amount: 1n }, "9f3a"],
])
  test(`an increment with ${argument} counts`, async () => {
    const world = new World();
    const outcome = await world.openTab({ user: () => 7n, token: () => token(7) }).increment("plays", id, options);
    assert.equal(outcome.state, "counted");
    assert.equal(world.server.counts.get(sentId), 1);
  });

for (const amount of [1e15, 10n ** 15n, -1e15])
  test(`the amount ${amount} (${typeof amount}) is counted exactly`, async () => {
    const world = new World();
    assert.equal((await world.openTab().increment("plays", "9f3a", { amount })).state, "counted");
    assert.equal(world.server.counts.get("9f3a"), Number(amount));
  });

for (const [mistake, id, options] of [
  ["one dot as the id", "."], ["two dots as the id", ".."], ["no id", undefined], ["an empty id", ""],
  ["an id of 257 characters", "x".repeat(257)], ["NaN as the id", NaN], ["0.5 as the id", 0.5], ["an object as the id", {}],
  ["a list as the id", ["7"]], ["true as the id", true], ["a number sign in the id", "a#b"], ["a line break in the id", "a\n"],
  ["a string as the amount", "a", { amount: "7" }], ["0.5 as the amount", "a", { amount: 0.5 }],
  ["an amount above 10^15", "a", { amount: 10n ** 15n + 1n }], ["null as the amount", "a", { amount: null }],
  ["a short key of an anonymous change", "a", { key: "job-1" }], ["a comma in the key", "a", { key: `${KEY},` }],
  ["null as the key", "a", { key: null }],
])
  test(`a call with ${mistake} throws a TypeError, and nothing is stored`, () => {
    const world = new World();
    const page = world.openTab(ANN);
    assert.throws(() => page.increment("plays", id, options), /TypeError: tally: .* is not a valid (counter or id|amount|key)/s);
    assert.deepEqual(world.shared.entries, []);
  });

for (const status of [400, 401, 403, 404, 405, 413])
  test(`the caller of a change learns that the gateway answered ${status}, and the page sends the change only after retry()`, async () => {
    const world = new World();
    const warn = mock.method(console, "warn", () => {});
    world.server.faults = ({ method }) => (method === "GET" ? undefined : gatewayAnswer(status));
    const page = world.openTab(ANN);
    const reported = [];
    page.addEventListener("change", ({ detail: { entry } }) => reported.push(entry.why));
    const outcomes = [page.increment("usage", "7c20"), page.increment("usage", "7c21"), page.like("hearts", "article-1")];
    assert.deepEqual(await Promise.all(outcomes), Array(3).fill({ state: "denied", status }));
    assert.deepEqual(page.waiting().map(({ why, status, sent }) => [why, status, sent]), Array(3).fill(["denied", status, 0]));
    assert.ok(reported.includes("denied"));
    assert.deepEqual(warn.mock.calls.map(({ arguments: [line] }) => line.match(/answers (\d+ to changes of \w+)/)[1]), [
      `${status} to changes of usage`, `${status} to changes of hearts`,
    ]);
    warn.mock.restore();
    const { length } = world.server.sent;
    const startMs = Date.now();
    await world.until(() => Date.now() - startMs > 3 * HOUR_MS, MINUTE_MS * 10);
    world.fireEvent("visibilitychange");
    await world.runPending();
    assert.equal(world.server.sent.length, length);
    world.server.faults = [];
    page.retry();
    await world.until(() => !page.waiting().length);
    assert.equal(world.server.sent.length, length + 3);
  });

test("a denied change is sent again with another token, or by the next page", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  let scope = "";
  const scopedToken = () => `${token("ann")}${scope}`;
  world.server.faults = ({ headers }) => (headers.authorization?.endsWith("write") ? undefined : gatewayAnswer(403));
  const page = world.openTab({ user: () => "ann", token: scopedToken });
  assert.equal((await page.increment("usage", "7c20", { signed: true })).state, "denied");
  assert.equal((await page.increment("plays", "9f3a")).state, "denied");
  scope = "write";
  await world.until(() => world.server.counts.get("7c20") === 1);
  const next = world.closeTabs();
  next.server.faults = [];
  next.openTab();
  await next.until(() => next.server.counts.get("9f3a") === 1);
});

test("a caller who repeats the key of another tab's denied change learns that the change is denied", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  world.server.faults = () => gatewayAnswer(404);
  const [page, otherTab] = [world.openTab(), world.openTab()];
  await page.increment("plays", "9f3a", { key: KEY });
  await world.until(() => reasons(otherTab)[0] === "denied");
  const outcome = otherTab.increment("plays", "9f3a", { key: KEY });
  otherTab.retry();
  assert.equal((await world.resultOf(outcome)).state, "denied");
});

/** Two tabs of a browser without locks send the same change. `deny` answers a tab with 403: by default the first tab.
 * `count` counts the change, and answers the second tab. */
const sendFromTwoTabs = async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  delete world.navigator.locks;
  const answers = [];
  world.server.faults = () => () => new Promise((answer) => answers.push(answer));
  const tabs = [world.openTab(), world.openTab()];
  tabs[0].increment("plays", "9f3a", { key: KEY });
  await world.until(() => answers.length === 2);
  world.server.faults = [];
  const deny = (tab = 0) => answers[tab](json(403, {}));
  const count = () => answers[1](world.server.answer(world.server.sent[1]));
  return { world, tabs, deny, count };
};

test("a change that one tab was denied and another tab has sent is not sent after its receipt may have expired", async () => {
  const { world, tabs, deny } = await sendFromTwoTabs();
  world.server.answer(world.server.sent[1]);
  deny();
  await world.until(() => tabs.some((tab) => reasons(tab)[0] === "denied"));
  const next = world.closeTabs();
  next.server.receipts.clear();
  next.moveClock(48 * HOUR_MS);
  const page = next.openTab();
  await next.until(() => !page.waiting().length);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("a change that two tabs were denied is in doubt after two days, because a tab does not know the other tab's answer", async () => {
  const { world, tabs, deny } = await sendFromTwoTabs();
  for (const tab of [0, 1]) deny(tab);
  await world.until(() => tabs.every((tab) => reasons(tab)[0] === "denied"));
  const next = world.closeTabs();
  next.moveClock(48 * HOUR_MS);
  const page = next.openTab();
  let end;
  page.addEventListener("change", ({ detail: { outcome } }) => (end = outcome));
  await next.until(() => !page.waiting().length);
  assert.deepEqual([end, next.server.sent.length], [{ state: "doubt" }, 2]);
});

test("a tab does not store a denied change that another tab has counted and removed", async () => {
  const { world, tabs, deny, count } = await sendFromTwoTabs();
  const ends = [];
  tabs.forEach((tab, at) =>
    tab.addEventListener("change", ({ detail: { entry, outcome } }) => entry.key === KEY && outcome && ends.push(`${at} ${outcome.state}`)),
  );
  // The events of the storage reach no tab in this test, as if they came late.
  for (const tab of tabs) tab.storage.listeners.length = 0;
  count();
  await world.until(() => ends.length);
  // An answer corrects the time at which each change of the tab was sent.
  await Promise.all(tabs.map((tab) => world.resultOf(tab.increment("plays", "c41d"))));
  assert.deepEqual(world.shared.entries, []);
  deny();
  await world.until(() => !tabs.some((tab) => tab.waiting().length));
  assert.deepEqual(ends.toSorted(), ["0 counted", "1 counted"]);
  assert.equal(world.server.sent.filter(({ key }) => key === KEY).length, 2, "the denied tab asks only for the receipt");
  assert.equal(world.server.counts.get("9f3a"), 1);
});

test("a tab does not store a change whose receipt is denied after another tab has counted the change", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  delete world.navigator.locks;
  world.server.faults = () => requestLost;
  const [otherTab, page] = [world.openTab(), world.openTab()];
  const ends = [];
  [otherTab, page].forEach((tab, at) => tab.addEventListener("change", ({ detail: { outcome } }) => outcome && ends.push(`${at} ${outcome.state}`)));
  page.increment("plays", "9f3a", { key: KEY });
  await world.until(() => world.server.sent.length > 2);
  // The events of the storage reach no tab in this test, as if they came late.
  for (const tab of [otherTab, page]) tab.storage.listeners.length = 0;
  // After two hours the client asks for the receipt first. `held`: the two requests for the receipt.
  world.moveClock(2 * HOUR_MS);
  const held = [];
  world.server.faults = ({ path }) => path.startsWith("/receipts") && ((request) => new Promise((answer) => held.push({ answer, request })));
  otherTab.retry();
  await world.until(() => held.length === 1);
  page.retry();
  await world.until(() => held.length === 2);
  world.server.faults = [];
  held[0].answer(world.server.answer(held[0].request));
  await world.until(() => ends.length);
  world.server.faults = [gatewayAnswer(403)];
  held[1].answer(json(403, {}));
  await world.until(() => reasons(page)[0] === "denied");
  assert.deepEqual(world.shared.entries, []);
  page.retry();
  otherTab.retry();
  await world.until(() => ![otherTab, page].some((tab) => tab.waiting().length));
  assert.deepEqual(ends, ["0 counted", "1 counted"]);
  assert.equal(world.server.counts.get("9f3a"), 1);
});

for (const [ends, endIn, state, likers] of [
  ["counts", (tab) => tab.retry(), "counted", ["hearts/article-1/ann"]],
  ["forgets", (tab) => tab.forget("ann"), "superseded", []],
])
  test(`if another tab ${ends} a like after a page has asked for its receipt, the like is ${state} on the page`, async () => {
    const world = new World();
    delete world.navigator.locks;
    world.server.faults = () => requestLost;
    const [page, otherTab] = [world.openTab(ANN), world.openTab(ANN)];
    const outcome = page.like("hearts", "article-1");
    await world.until(() => world.server.sent.length > 2);
    // The events of the storage reach no tab in this test, as if they came late.
    for (const tab of [page, otherTab]) tab.storage.listeners.length = 0;
    world.moveClock(2 * HOUR_MS);
    // Tally has no receipt. Before the page's request to /health ends, the other tab settles the change.
    let endRequest;
    world.server.faults = ({ path }) =>
      path === "/health" && !endRequest && ((request, server) => new Promise((end) => (endRequest = () => end(server.answer(request)))));
    page.retry();
    await world.until(() => endRequest);
    endIn(otherTab);
    await world.until(() => !world.shared.entries.length);
    endRequest();
    assert.equal((await world.resultOf(outcome)).state, state);
    assert.deepEqual([...world.server.likers], likers);
  });

test("a denied change is sent once, although the storage became full while its request was open", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  let deny;
  // The storage is full before the answer to the second change, which corrects the time at which the first was sent.
  const fillStorage = (request, server) => ((world.shared.full = true), server.answer(request));
  world.server.faults = [() => new Promise((answer) => (deny = () => answer(json(403, {})))), fillStorage, gatewayAnswer(403)];
  const page = world.openTab();
  const outcome = page.increment("plays", "9f3a");
  await world.resultOf(page.increment("plays", "c41d"));
  deny();
  assert.equal((await world.resultOf(outcome)).state, "denied");
  assert.deepEqual([world.server.sent.length, page.waiting()[0].sent], [2, 0]);
});

test("a denied change is not sent without a pause if the storage keeps nothing", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  // After ten requests the test fails and does not hang.
  world.server.faults = ({ method }) => (world.server.requests.length > 10 ? neverAnswers : method !== "GET" && gatewayAnswer(403));
  const storage = Object.assign(world.shared.openView(), { setItem: () => {} });
  const page = new Tally({ api: API, storage });
  // The client cannot tell this storage from an item that another tab removed, so it first asks for the receipt.
  assert.equal((await world.resultOf(page.increment("plays", "9f3a"))).state, "denied");
  assert.deepEqual(world.server.requests.map(({ path }) => path.split("/")[1]), ["receipts", "health", "counters"]);
});

test("a later change of a like does not wait for a denied change of this like", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  world.server.faults = [gatewayAnswer(403)];
  const page = world.openTab(ANN);
  await page.like("hearts", "article-1");
  let last;
  page.addEventListener("change", ({ detail: { outcome } }) => (last = outcome));
  page.like("hearts", "article-1", false);
  await world.until(() => last?.state === "counted");
  assert.deepEqual(page.waiting(), []);
});

test("a like is not superseded if the storage cannot be read, because another tab may have sent the like", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.openTab(ANN);
  let first;
  page.like("hearts", "article-1").then(({ state }) => (first = state));
  for (const view of world.shared.tabs) view.getItem = () => assert.fail();
  page.like("hearts", "article-1", false);
  world.navigator.onLine = true;
  world.fireEvent("online");
  await world.runPending();
  assert.notEqual(first, "superseded");
});

test("while a browser says that it is offline, the client asks only for /health, so no change is in doubt", async () => {
  const world = new World();
  world.navigator.onLine = false;
  world.server.faults = () => requestLost;
  const page = world.openTab();
  const outcomes = Array.from({ length: 9 }, () => page.increment("plays", "9f3a"));
  const startMs = Date.now();
  await world.until(() => Date.now() - startMs > 10 * MINUTE_MS, 1000);
  assert.deepEqual([...new Set(page.waiting().map(({ why, sent }) => `${why} ${sent}`))], ["offline 0"]);
  // In the last pauses, of 15 to 30 s, the client sends up to 4 requests a minute.
  assert.ok(world.server.requests.length < 40);
  world.server.faults = [];
  await world.resultOf(Promise.all(outcomes));
  assert.equal(world.server.counts.get("9f3a"), 9);
});

test("after a 429 with a negative retry-after the client pauses before it sends again", async () => {
  const world = new World();
  // If the client did not wait, it would send requests for ever. So the 51st request gets no answer.
  world.server.faults = () => (world.server.requests.length > 50 ? neverAnswers : () => json(429, {}, { "retry-after": "-0.001" }));
  const page = world.openTab();
  for (let at = 0; at < 5; at++) page.increment("plays", `video-${at}`);
  const startMs = Date.now();
  await world.until(() => Date.now() - startMs > MINUTE_MS);
  assert.ok(world.server.requests.length < 20, String(world.server.requests.length));
});

test("a line break at the end of a token, as in a file, is not sent", async () => {
  const world = new World();
  const page = world.openTab({ user: () => "ann", token: () => `${token("ann")}\n` });
  assert.equal((await world.resultOf(page.like("hearts", "article-1"))).state, "counted");
  assert.equal(world.server.sent[0].headers.authorization, `Bearer ${token("ann")}`);
});

test("a call for a user with a lone surrogate throws a TypeError, and nothing is stored", () => {
  const world = new World();
  const page = world.openTab({ user: () => "ann\ud800", token: () => token("ann\ud800") });
  for (const call of [() => page.like("hearts", "article-1"), () => page.increment("plays", "9f3a", { signed: true })])
    assert.throws(call, /TypeError: tally: .* is not a valid user/);
  assert.deepEqual(world.shared.entries, []);
});

test("forget(undefined) removes no change", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.openTab();
  page.increment("plays", "9f3a");
  page.forget(undefined);
  assert.equal(page.waiting().length, 1);
});

test("a change that is forgotten while the client waits for a token is not sent", async () => {
  const world = new World();
  let giveToken;
  const page = world.openTab({ user: () => "ann", token: () => new Promise((resolve) => (giveToken = resolve)) });
  const otherTab = world.openTab();
  const outcome = page.like("hearts", "article-1");
  await world.runPending();
  otherTab.forget("ann");
  await world.runPending();
  giveToken(token("ann"));
  await world.runPending();
  assert.equal((await outcome).state, "forgotten");
  assert.deepEqual([world.shared.entries, world.server.sent], [[], []]);
});

test("a change that is forgotten while its request is open is not sent again", async () => {
  const world = new World();
  let failRequest;
  world.server.faults = [() => new Promise((_, reject) => (failRequest = reject))];
  const page = world.openTab(ANN);
  page.like("hearts", "article-1");
  await world.runPending();
  page.forget("ann");
  failRequest(new TypeError("fetch failed"));
  const startMs = Date.now();
  await world.until(() => Date.now() - startMs > MINUTE_MS);
  assert.deepEqual([world.shared.entries, world.server.sent.length], [[], 1]);
});

for (const [reply, answer, state] of [
  ["denied", () => json(403, { message: "Forbidden" }), "denied"],
  ["refused", () => refusal(404, "not-found"), "superseded"],
])
  test(`a like that another tab removed from the storage is not stored again if the request for its receipt is ${reply}`, async () => {
    const world = new World();
    const page = world.openTab(ANN);
    world.server.faults = [requestLost];
    const outcome = page.like("hearts", "article-1");
    await world.runPending();
    world.shared.items.clear();
    world.server.faults = ({ method }) => method === "GET" && answer;
    assert.equal((await world.resultOf(outcome)).state, state);
    assert.deepEqual([world.shared.entries, world.server.sent.length], [[], 1]);
  });

test("items that another program stored under the client's prefix are not sent, and a change beside these items is sent", async () => {
  const world = new World();
  for (const [name, value] of [
    storedChange("x"), storedChange(""), storedChange(" plays . " + KEY), storedChange(" plays a/b " + KEY), storedChange(" plays 9f3a k more"),
    [storedChange(" plays 9f3a " + KEY)[0], "{}"], [storedChange(" plays 9f3b " + KEY)[0], "null"], [storedChange(" plays 9f3c " + KEY)[0], "{nonsense"],
    storedChange("ann hearts article-1 " + KEY, { present: "yes" }),
  ])
    world.shared.items.set(name, value);
  // The name of an item says which change it is. The client ignores the counter, id, key and user in the item's text.
  world.shared.items.set(...storedChange(" plays 9f3d " + KEY, { counter: "usage", id: "..", key: "k", user: "eve" }));
  const page = world.openTab(ANN);
  await world.until(() => !page.waiting().length);
  assert.deepEqual(world.server.sent.map(({ path }) => path), ["/counters/plays/9f3d/increments"]);
});

test("a folder on a full disk keeps no partial change", { skip: process.platform === "win32" }, () => {
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  // `ulimit -f 1` limits a file to 1 KB. The system writes 1 KB, and then fails.
  const program = `import { folder } from "${new URL("../../tally/javascript/node.js", import.meta.url)}";
    try { folder("${path}").setItem("name", "x".repeat(3000)); } catch {}`;
  const limited = `trap "" XFSZ; ulimit -f 1; exec "$0" --input-type=module --eval "$1"`;
  assert.equal(spawnSync("bash", ["-c", limited, process.execPath, program]).status, 0);
  assert.equal(folder(path).length, 0);
});

test("a relative folder stays the same when the process changes its directory, and a URL is not a folder", () => {
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  const directoryBefore = process.cwd();
  process.chdir(path);
  const outbox = folder("outbox");
  process.chdir(directoryBefore);
  outbox.setItem("name", "text");
  assert.equal(folder(join(path, "outbox")).getItem("name"), "text");
  assert.throws(() => folder(pathToFileURL(path)), TypeError);
});

test("a folder may hold files and folders of other programs", async () => {
  const world = new World();
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  mkdirSync(join(path, "lost+found"));
  mkdirSync(join(path, "0".repeat(64)));
  writeFileSync(join(path, ".DS_Store"), "x");
  world.server.faults = () => requestLost;
  new Tally({ api: API, storage: folder(path) }).increment("plays", "9f3a");
  await world.runPending();
  const next = world.closeTabs();
  next.server.faults = [];
  new Tally({ api: API, storage: folder(path) });
  await next.until(() => next.server.counts.get("9f3a") === 1);
});

test("the client reads the items of 500 changes at most 1,110 times, although 50 answers get lost", async () => {
  const world = new World();
  for (let at = 0; at < 500; at++) world.shared.items.set(...storedChange(` plays 9f3a ${KEY}-${at}`));
  const storage = world.shared.openView();
  const { getItem } = storage;
  let reads = 0;
  storage.getItem = (name) => (reads++, getItem(name));
  // The first answers for the 50 keys that end with 7 get lost.
  const lost = new Set();
  world.server.faults = ({ key }) => (key.endsWith("7") && !lost.has(key) ? (lost.add(key), answerLost) : undefined);
  new Tally({ api: API, storage });
  await world.until(() => world.server.counts.get("9f3a") === 500, 5000);
  await world.until(() => !world.shared.entries.length, 5000);
  // Two reads for each change, two more for each lost answer, and a few for the last changes.
  assert.ok(reads <= 500 * 2 + 50 * 2 + 10, `${reads} reads`);
});

test("numbers are read in parts of 6 KB, and a part without an answer fails no other part", async () => {
  const world = new World();
  const pages = Array.from({ length: 120 }, (_, at) => `visits:https://example.jp/${"記".repeat(20)}${at}`);
  const sizes = [];
  world.server.faults = ({ path, query }) => {
    sizes.push(`${path}?${query}`.length);
    if (sizes.length === 2) return requestLost;
    return () => json(200, { tallies: query.getAll("of").map((of) => ({ counter: "visits", id: of.slice(7), value: 1 })) });
  };
  const values = await world.openTab().values(pages);
  // A character of Japanese has 9 bytes in an address, so 120 pages need more than 24 KB.
  assert.ok(Math.max(...sizes) < 6100 && sizes.length > 3, sizes.join());
  assert.deepEqual(values.map(({ counter, id }) => `${counter}:${id}`), pages);
  const failed = values.filter(({ error }) => error);
  assert.ok(failed.length > 9 && failed.length < 60); // the pages of one part
  assert.equal(failed[0].error.detail, "fetch failed");
});

test("the client asks for many receipts with one request, and alone for a receipt whose request Tally refuses", async () => {
  const world = new World();
  const sent = Date.now();
  for (let at = 0; at < 300; at++) {
    const [name, value] = storedChange(` plays v${at} ${KEY}-${at}`, { sent, tries: 1 });
    world.shared.items.set(name, value);
    // Two thirds of the changes have counted.
    if (at % 3) world.server.answer({ method: "POST", path: `/counters/plays/v${at}/increments`, key: `${KEY}-${at}`, query: new URLSearchParams() });
  }
  world.moveClock(2 * HOUR_MS);
  world.server.faults = ({ query }) => (query.getAll("key").includes(`${KEY}-150`) ? () => refusal(400, "invalid-input") : undefined);
  const page = world.openTab();
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.counts.size, 300);
  assert.equal(world.server.sent.length, 100);
  const receiptRequests = world.server.requests.filter(({ path }) => path === "/receipts");
  // Three requests ask for 100 receipts each. Tally refuses one of these, and the client asks for its receipts alone.
  assert.ok(receiptRequests.length < 120, `${receiptRequests.length} requests`);
});

/** Stores a change that was sent two hours ago. So the client asks for its receipt before it sends the change. */
const storeOldChange = (world, counter, key) =>
  world.shared.items.set(...storedChange(` ${counter} old ${KEY}-${key}`, { sent: Date.now() - 2 * HOUR_MS, tries: 1 }));

test("an old change waits until /health lists its counter, and delays no other change", async () => {
  const world = new World();
  // Every object of JavaScript has a member `constructor`, also the object in which /health lists counters.
  for (const counter of ["constructor", "plays", "votes"]) storeOldChange(world, counter, 1);
  const page = world.openTab();
  await world.runPending();
  assert.equal(world.server.sent.length, 1);
  await world.until(() => world.server.requests.length > 20);
  assert.deepEqual(page.waiting().map(({ counter, why, sent }) => [counter, why, sent > 0]).sort(), [
    ["constructor", "unanswered", true], ["votes", "unanswered", true],
  ]);
  assert.deepEqual(world.server.sent.map(({ path }) => path), ["/counters/plays/old/increments"]);
  Object.assign(world.server.receiptsLiveS, { votes: 24 * 3600, constructor: 24 * 3600 });
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.counts.get("old"), 3);
});

test("the client asks each time how long receipts live, because a deployment may change this time", async () => {
  const world = new World();
  storeOldChange(world, "plays", 1);
  const page = world.openTab();
  await world.until(() => world.server.sent.length === 1);
  world.server.receiptsLiveS.plays = 2 * 3600;
  storeOldChange(world, "plays", 2);
  page.retry();
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.sent.length, 1, "the second change, sent 2 hours ago, is in doubt");
});

test("if requests for the receipts of old changes fail, no new change is delayed", async () => {
  const world = new World();
  storeOldChange(world, "plays", 1);
  world.server.faults = ({ path }) => (path === "/receipts" ? () => json(429, {}) : undefined);
  const page = world.openTab();
  const outcomes = Array.from({ length: 20 }, () => page.increment("plays", "9f3a"));
  await world.resultOf(Promise.all(outcomes));
  assert.deepEqual(reasons(page), ["unanswered"]);
});

for (const [failure, breakStorage] of Object.entries({
  // The client removes the item that it cannot replace, so only the page's memory has the change.
  "fills up": ({ shared }) => (shared.full = true),
  "rejects writes and removals": (world) => Object.assign(world.views[0], { setItem: () => assert.fail(), removeItem: () => assert.fail() }),
}))
  test(`if the storage ${failure} before a change is sent, the change does not count twice`, async () => {
    const world = new World();
    const page = world.openTab();
    world.views = [...world.shared.tabs];
    world.server.faults = [answerLost];
    const outcome = page.increment("plays", "9f3a");
    breakStorage(world);
    await world.runPending();
    // The storage that rejects writes and removals cannot record the request, so the client does not send the change.
    if (!world.server.sent.length) return assert.deepEqual(reasons(page), ["storage"]);
    // The receipt has expired: 30 hours pass on the page's clock. The server's Date does not change.
    world.server.receipts.clear();
    world.moveClock(30 * HOUR_MS);
    world.server.aheadMs = -30 * HOUR_MS;
    assert.equal((await world.resultOf(outcome)).state, "doubt");
    assert.equal(world.server.counts.get("9f3a"), 1);
  });

test("if a change with the same key and another amount waits, a new change is refused at once, as Tally would refuse it", async () => {
  const world = new World();
  world.server.faults = [neverAnswers];
  const page = world.openTab();
  page.increment("usage", "7c20", { key: KEY, amount: 5 });
  const { state, answer } = await page.increment("usage", "7c20", { key: KEY, amount: 9 });
  assert.deepEqual([state, answer.status, answer.type], ["refused", 422, "urn:problem-type:tally:key-reused"]);
  assert.equal(page.waiting().length, 1);
});

test("if a change with the same key and no amount waits, Tally decides about a change with an amount", async () => {
  const world = new World();
  const page = world.openTab();
  world.server.faults = [undefined, () => refusal(422, "key-reused")];
  const outcomes = [page.increment("usage", "7c20", { key: KEY }), page.increment("usage", "7c20", { key: KEY, amount: 9 })];
  assert.deepEqual((await world.resultOf(Promise.all(outcomes))).map(({ state }) => state), ["counted", "refused"]);
});

test("two clients of one page share the changes that wait", async () => {
  const world = new World();
  const storage = world.shared.openView();
  const pages = [0, 1].map(() => new Tally({ api: API, storage, ...ANN }));
  const reported = [0, 0];
  pages.forEach((page, at) => page.addEventListener("change", ({ detail }) => detail.outcome && reported[at]++));
  const outcomes = pages.flatMap((page) => [page.increment("plays", "9f3a"), page.like("hearts", `${pages.indexOf(page)}`)]);
  assert.deepEqual((await world.resultOf(Promise.all(outcomes))).map(({ state }) => state), Array(4).fill("counted"));
  assert.deepEqual(reported, [4, 4]);
  assert.equal(world.server.sent.length, 4);
});
