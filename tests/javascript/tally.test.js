// Tests what the client promises, by the requests that the server got and by the items that the storage holds.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Tally } from "../../tally/javascript/tally.js";
import { API, HOUR_MS, World, json, answerLost, refusal, token, requestLost, neverAnswers } from "./world.js";

const ANN = { user: () => "ann", token: () => token("ann") };
const captivePortal = () => new Response("<h1>Sign in to the Wi-Fi</h1>", { status: 200 });

test("a change is stored before the call returns, and the time of its first request is stored before this request", async () => {
  const world = new World();
  let stored;
  world.server.faults = [() => ((stored = world.shared.entries), requestLost())];
  world.openTab().increment("plays", "9f3a");
  assert.equal(world.server.requests.length, 0);
  assert.equal(world.shared.entries.length, 1);
  await world.runPending();
  assert.equal(stored[0].key, world.server.requests[0].key);
  assert.ok(stored[0].sent > 0, "the time of sending is stored before the request");
});

test("after a lost answer the same key is sent again, and counts once", async () => {
  const world = new World();
  world.server.faults = [answerLost, requestLost, answerLost];
  const outcome = await world.resultOf(world.openTab().increment("plays", "9f3a"));
  assert.equal(outcome.state, "counted");
  assert.equal(outcome.replayed, true);
  assert.equal(new Set(world.server.sent.map(({ key }) => key)).size, 1);
  assert.equal(world.server.sent.length, 4);
  assert.equal(world.server.counts.get("9f3a"), 1);
  assert.deepEqual(world.shared.entries, []);
});

test("a page that is closed loses no change, because the next page sends its changes", async () => {
  const world = new World();
  world.server.faults = (request) => (request.path.includes("unsent") ? requestLost : (_, server) => (server.answer(request), neverAnswers()));
  const page = world.openTab();
  page.increment("plays", "counted");
  page.increment("plays", "unsent");
  await world.runPending();
  const next = world.closeTabs();
  next.server.faults = [];
  next.openTab();
  await next.until(() => !next.shared.entries.length);
  assert.deepEqual(Object.fromEntries(next.server.counts), { counted: 1, unsent: 1 });
});

for (const [reply, answer] of Object.entries({
  "the page of a captive portal": captivePortal,
  "JSON of another server": () => json(200, { ok: true, counted: true }),
  "an answer for another id": () => json(200, { counter: "plays", id: "other", counted: true }),
  "a 500 of the gateway": () => json(500, { message: "Internal Server Error" }),
  "a 503 of Tally": () => refusal(503, "busy", { "retry-after": "1" }),
  "a 429 of the gateway": () => json(429, { message: "Too Many Requests" }),
}))
  test(`${reply} settles no change, and the client sends the change again`, async () => {
    const world = new World();
    world.server.faults = [answer, answer];
    const outcome = await world.resultOf(world.openTab().increment("plays", "9f3a"));
    assert.equal(outcome.state, "counted");
    assert.equal(world.server.counts.get("9f3a"), 1);
    assert.equal(world.server.sent.length, 3);
  });

test("JSON of another server, whose `type` cannot become a string, denies one change, and delays no other change", async () => {
  const world = new World();
  world.server.faults = [() => json(400, { type: { toString: 1 } })];
  const page = world.openTab();
  const denied = page.increment("plays", "denied");
  await world.runPending();
  assert.equal((await world.resultOf(page.increment("plays", "other"))).state, "counted");
  assert.deepEqual(await world.resultOf(denied), { state: "denied", status: 400 });
});

test("if Tally refuses a change, the outcome has Tally's reason", async () => {
  const world = new World();
  world.server.faults = [() => refusal(409, "limit-reached")];
  const outcome = await world.resultOf(world.openTab().increment("plays", "9f3a"));
  assert.equal(outcome.state, "refused");
  assert.equal(outcome.answer.detail, "It is limit-reached.");
  assert.deepEqual(world.shared.entries, []);
});

test("a busy server gets no request before its retry-after has passed", async () => {
  const world = new World();
  world.server.faults = [() => refusal(503, "busy", { "retry-after": "40" })];
  const page = world.openTab();
  page.increment("plays", "9f3a");
  await world.runPending();
  const startMs = Date.now();
  page.increment("plays", "9f3b");
  await world.until(() => world.server.sent.length > 1);
  assert.ok(Date.now() - startMs >= 40e3);
  await world.until(() => world.server.counts.size === 2);
});

test("after a failure the client sends one change at a time, so a dead network leaves few changes in doubt", async () => {
  const world = new World();
  const page = world.openTab();
  world.server.faults = () => requestLost;
  page.increment("plays", "first");
  await world.until(() => world.server.sent.length === 3);
  for (let nth = 0; nth < 20; nth++) page.increment("plays", "more");
  await world.until(() => world.server.sent.length === 6);
  assert.equal(world.shared.entries.filter(({ sent }) => sent).length, 4, "`first`, and one of the 20 in each of 3 requests");
});

test("if a change counted and its answer got lost, a page asks for the receipt 30 hours later, and does not send the change", async () => {
  const world = new World();
  world.server.faults = [answerLost];
  const page = world.openTab();
  page.increment("plays", "9f3a");
  await world.runPending();
  const next = world.closeTabs();
  next.moveClock(30 * HOUR_MS); // this server's receipts do not expire
  next.server.requests = [];
  const outcome = await next.resultOf(
    new Promise((resolve) => next.openTab().addEventListener("change", ({ detail }) => detail.outcome && resolve(detail.outcome)))
  );
  assert.equal(outcome.state, "counted");
  assert.deepEqual(next.server.sent, []);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

for (const [claim, hours, state, counts] of [
  ["is sent again while a receipt lives", 22, "counted", 1], // the client does not use the last of 24 hours
  ["is in doubt, and is not sent, after a receipt has expired", 24, "doubt", undefined],
])
  test(`an unanswered change without a receipt ${claim}`, async () => {
    const world = new World();
    world.server.faults = [requestLost];
    world.openTab().increment("plays", "9f3a");
    await world.runPending();
    const next = world.closeTabs();
    next.moveClock(hours * HOUR_MS);
    next.server.requests = [];
    const outcomes = [];
    next.openTab().addEventListener("change", ({ detail }) => detail.outcome && outcomes.push(detail.outcome.state));
    await next.until(() => outcomes.length);
    assert.deepEqual(outcomes, [state]);
    assert.equal(next.server.counts.get("9f3a"), counts);
    assert.deepEqual(next.server.requests.slice(0, 2).map(({ path }) => path), ["/receipts", "/health"]);
  });

test("a change that was never sent is sent a month later, without a request for a receipt", async () => {
  const world = new World();
  world.navigator.onLine = false;
  world.openTab().increment("plays", "9f3a");
  await world.runPending();
  assert.equal(world.server.requests.length, 0);
  const next = world.closeTabs();
  next.moveClock(30 * 24 * HOUR_MS);
  next.openTab();
  await next.until(() => next.server.counts.get("9f3a") === 1);
  assert.equal(next.server.requests.length, 1);
});

test("if the clock was set back by hours after a change was sent, the client asks for the receipt of the change", async () => {
  const world = new World();
  world.server.faults = [answerLost];
  world.openTab().increment("plays", "9f3a");
  await world.runPending();
  const next = world.closeTabs();
  next.moveClock(-5 * HOUR_MS);
  next.openTab();
  await next.until(() => !next.shared.entries.length);
  assert.equal(next.server.sent.length, 1);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("a clock that is a year behind, and is corrected, loses no change, because ages are in the server's time", async () => {
  const world = new World();
  const year = 365 * 24 * HOUR_MS;
  world.server.aheadMs = year;
  const page = world.openTab();
  await world.resultOf(page.increment("plays", "first"));
  world.server.faults = [requestLost];
  page.increment("plays", "9f3a");
  await world.runPending();
  const next = world.closeTabs();
  next.server.aheadMs = 0;
  next.moveClock(year + 2 * HOUR_MS);
  next.openTab();
  await next.until(() => !next.shared.entries.length);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("a change that is made offline is not sent and not in doubt, and is sent at once when the browser is online", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const outcome = world.openTab().increment("plays", "9f3a");
  await world.runPending();
  assert.equal(world.shared.entries[0].sent, 0);
  world.navigator.onLine = true;
  world.fireEvent("online");
  assert.equal((await outcome).state, "counted");
});

test("a change that always fails delays no other change", async () => {
  const world = new World();
  world.server.faults = ({ path }) => (path.includes("poison") ? () => json(500, {}) : undefined);
  const page = world.openTab();
  page.increment("plays", "poison");
  await world.runPending();
  for (let nth = 0; nth < 20; nth++) page.increment("plays", "9f3a");
  await world.runPending();
  assert.equal(world.server.counts.get("9f3a"), 20);
});

test("the last of the changes of a like wins, and a later change waits for the answer to an earlier change", async () => {
  const world = new World();
  const page = world.openTab(ANN);
  let deliverAnswer;
  world.server.faults = [(request, server) => new Promise((resolve) => (deliverAnswer = () => resolve(server.answer(request))))];
  const outcomes = [true, false, true, false].map((present) => page.like("hearts", "article-1", present));
  await world.runPending();
  assert.deepEqual(world.server.sent.map(({ method }) => method), ["DELETE"], "earlier changes that were never sent are superseded");
  outcomes.push(page.like("hearts", "article-1", true));
  await world.runPending();
  assert.equal(world.server.sent.length, 1);
  deliverAnswer();
  assert.deepEqual((await Promise.all(outcomes)).map(({ state }) => state), [
    "superseded", "superseded", "superseded", "counted", "counted",
  ]);
  assert.deepEqual([...world.server.likers], ["hearts/article-1/ann"]);
});

test("a like without an answer is settled before the next change of this like is sent, also by a new page", async () => {
  const world = new World();
  world.server.faults = [answerLost];
  world.openTab(ANN).like("hearts", "article-1");
  await world.runPending();
  const next = world.closeTabs();
  next.server.faults = [requestLost, answerLost];
  const outcome = next.openTab(ANN).like("hearts", "article-1", false);
  assert.equal((await next.resultOf(outcome)).state, "counted");
  // The first PUT is of the first page. The next page sends the PUT three times, because two requests fail.
  assert.deepEqual(next.server.sent.map(({ method }) => method), ["PUT", "PUT", "PUT", "PUT", "DELETE"]);
  assert.deepEqual([...next.server.likers], []);
});

test("changes of a like keep their order if the clock is set back between the changes", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.openTab(ANN);
  page.like("hearts", "article-1", true);
  world.moveClock(-HOUR_MS);
  const outcome = page.like("hearts", "article-1", false);
  world.navigator.onLine = true;
  world.fireEvent("online");
  assert.equal((await world.resultOf(outcome)).state, "counted");
  assert.deepEqual(world.server.sent.map(({ method }) => method), ["DELETE"]);
});

test("a user who signs in while another user's changes are being sent sends no change of the other user", async () => {
  const world = new World();
  const session = { user: "ann" };
  const page = world.openTab({ user: () => session.user, token: () => token(session.user) });
  const answers = [];
  world.server.faults = (request) => (request.caller === "ann" ? (_, server) => new Promise((resolve) => answers.push(() => resolve(server.answer(request)))) : undefined);
  for (let nth = 0; nth < 6; nth++) page.like("hearts", `post-${nth}`);
  await world.runPending();
  assert.equal(answers.length, 4, "the client sends 4 changes at a time");
  session.user = "bob";
  page.like("hearts", "bobs");
  for (const answer of answers) answer();
  await world.until(() => world.server.likers.has("hearts/bobs/bob"));
  assert.deepEqual([...world.server.likers].filter((liker) => liker.endsWith("/bob")), ["hearts/bobs/bob"]);
  assert.deepEqual(page.waiting().map(({ id, user }) => `${id} ${user}`).sort(), ["post-4 ann", "post-5 ann"]);
});

test("a like is sent only with a token of the user who made the like", async () => {
  const world = new World();
  const session = { user: "ann", token: token("bob") };
  let tokenCalls = 0;
  const page = world.openTab({ user: () => session.user, token: () => (tokenCalls++, session.token) });
  const outcome = page.like("hearts", "article-1");
  // The world begins at 00:00.
  await world.until(() => world.server.sent.length === 0 && Date.now() > Date.UTC(2026, 10, 23, 0, 5));
  assert.ok(tokenCalls > 1);
  Object.assign(session, { user: "bob", token: token("bob") });
  tokenCalls = 0;
  page.retry();
  await world.runPending();
  assert.deepEqual(world.server.requests, []);
  assert.equal(tokenCalls, 0, "another user is signed in");
  Object.assign(session, { user: "ann", token: token("ann") });
  page.retry();
  assert.equal((await world.resultOf(outcome)).state, "counted");
  assert.deepEqual(world.server.sent.map(({ caller }) => caller), ["ann"]);
});

test("if the API answers 401, the client asks once for a fresh token, and sends the like with this token", async () => {
  const world = new World();
  const freshFlags = [];
  world.server.faults = [() => json(401, { message: "Unauthorized" })];
  const page = world.openTab({ user: () => "ann", token: (fresh) => (freshFlags.push(fresh), token("ann")) });
  page.like("hearts", "article-1");
  await world.runPending();
  assert.deepEqual(freshFlags, [false, true]);
  assert.equal(world.server.likers.size, 1);
});

test("a call without a signed-in user throws, and so does a call with a malformed counter or id", () => {
  const page = new World().openTab();
  assert.throws(() => page.like("hearts", "article-1"), /nobody is signed in/);
  assert.throws(() => page.increment("usage", "7c20", { signed: true }), /nobody is signed in/);
  assert.throws(() => page.increment("plays"), /undefined is not a valid counter or id/);
  assert.throws(() => page.increment("plays", "a#b"), /a#b is not a valid counter or id/);
  assert.throws(() => new Tally({ api: "api.example.com" }), /api must be an address/);
});

test("a play needs no preflight, because its request has no header", async () => {
  const world = new World();
  world.openTab(ANN).increment("plays", "9f3a", { amount: 1 });
  await world.runPending();
  assert.deepEqual(world.server.sent.map(({ headers, path }) => [headers, path]), [[{}, "/counters/plays/9f3a/increments"]]);
});

for (const [failure, breakStorage] of Object.entries({
  "is full": ({ shared }) => (shared.full = true),
  "is forbidden": (world) => (world.shared.openView = () => ({ listeners: [] })),
  "has an unreadable item": ({ shared }) => shared.items.set(`tally1 ${API} x`, "{nonsense"),
}))
  test(`an open page counts exactly, although the storage ${failure}`, async () => {
    const world = new World();
    breakStorage(world);
    world.server.faults = [answerLost, requestLost];
    const page = world.openTab(ANN);
    const outcomes = await world.resultOf(Promise.all([page.increment("plays", "9f3a"), page.like("hearts", "article-1")]));
    assert.deepEqual(outcomes.map(({ state }) => state), ["counted", "counted"]);
    assert.equal(world.server.counts.get("9f3a"), 1);
    assert.deepEqual(page.waiting(), []);
  });

test("clearing the storage loses no anonymous increment, and sends no signed increment and no like", async () => {
  const world = new World();
  const page = world.openTab(ANN);
  world.server.faults = () => requestLost;
  const changes = [page.increment("plays", "9f3a"), page.increment("plays", "c41d", { signed: true }), page.like("hearts", "article-1")];
  await world.runPending();
  world.shared.clear();
  world.server.faults = [];
  const outcomes = await world.resultOf(Promise.all(changes));
  assert.deepEqual(outcomes.map(({ state }) => state), ["counted", "forgotten", "superseded"]);
  assert.deepEqual([...world.server.counts], [["9f3a", 1]]);
  assert.deepEqual([...world.server.likers], []);
});

test("one of three tabs sends at a time, so at most four requests are open, and each tab learns its outcomes", async () => {
  const world = new World();
  const tabs = [world.openTab(), world.openTab(), world.openTab()];
  let openRequests = 0;
  let mostOpen = 0;
  world.server.faults = () => async (request, server) => {
    mostOpen = Math.max(mostOpen, ++openRequests);
    await new Promise(setImmediate);
    openRequests--;
    return server.answer(request);
  };
  const outcomes = tabs.flatMap((tab) => Array.from({ length: 20 }, () => tab.increment("plays", "9f3a")));
  const states = (await world.resultOf(Promise.all(outcomes))).map(({ state, replayed }) => [state, replayed].join());
  assert.deepEqual([...new Set(states)], ["counted,false"]);
  assert.equal(world.server.sent.length, 60);
  assert.equal(world.server.counts.get("9f3a"), 60);
  assert.equal(mostOpen, 4);
});

test("two tabs without locks count each of 40 changes once, although answers and requests get lost", async () => {
  const world = new World();
  delete world.navigator.locks;
  const tabs = [world.openTab(), world.openTab()];
  // About half of the keys get no answer at first.
  world.server.faults = (request) => (request.key.charCodeAt(0) % 2 ? undefined : [answerLost, requestLost][world.server.requests.length % 2]);
  const outcomes = tabs.flatMap((tab) => Array.from({ length: 20 }, () => tab.increment("plays", "9f3a")));
  await world.until(() => world.server.sent.length > 60);
  world.server.faults = [];
  await world.resultOf(Promise.all(outcomes));
  assert.equal(world.server.counts.get("9f3a"), 40);
});

test("a change whose stored text has an outcome is not sent, because its tab closed before the tab removed the item", async () => {
  const world = new World();
  const entry = { counter: "plays", id: "9f3a", key: "k", at: Date.now(), sent: Date.now(), tries: 1 };
  world.shared.items.set(`tally1 ${API}  plays 9f3a k`, JSON.stringify({ ...entry, outcome: { state: "counted" } }));
  assert.deepEqual(world.openTab().waiting(), []);
  await world.runPending();
  assert.deepEqual(world.server.requests, []);
  assert.deepEqual(world.shared.entries, []);
});

test("a key that two pages use counts once, and the second page asks for the receipt, because the change was sent before", async () => {
  const world = new World();
  const key = "playback-0000000000000001";
  world.server.faults = [answerLost];
  const page = world.openTab();
  assert.equal(page.increment("plays", "9f3a", { key }), page.increment("plays", "9f3a", { key }));
  await world.runPending();
  const next = world.closeTabs();
  next.moveClock(2 * HOUR_MS);
  next.server.requests = [];
  assert.equal((await next.resultOf(next.openTab().increment("plays", "9f3a", { key }))).state, "counted");
  assert.deepEqual(next.server.sent, [], "the client asked for the receipt");
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("if the server does not answer in 35 s, the client aborts the request and sends the change again", async () => {
  const world = new World();
  world.server.faults = [({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))];
  assert.equal((await world.resultOf(world.openTab().increment("plays", "9f3a"), 1000)).state, "counted");
});

test("forget(user) removes the changes of this user, and no anonymous change", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.openTab(ANN);
  const outcome = page.like("hearts", "article-1");
  page.increment("plays", "9f3a");
  page.forget("ann");
  assert.equal((await outcome).state, "forgotten");
  assert.deepEqual(page.waiting().map(({ counter }) => counter), ["plays"]);
});

// JSON.stringify cannot write numbers beyond 2^53, as Tally does, so these answers are texts.
const textAnswer = (text) => () => new Response(text, { status: 200 });
const LARGE = 2n ** 53n + 1n;

test("a whole number beyond 2^53 is read as a BigInt, and every other number as a Number", async () => {
  const world = new World();
  const quotedId = `"1234567890123456789, \\" 12345678901234567890"`;
  world.server.faults = [textAnswer(`{"tallies":[{"value":${LARGE}},{"value":-${LARGE}},{"value":${2 ** 53 - 1}},{"value":12345678901234567.5,"id":${quotedId}}]}`)];
  const values = await world.openTab().values(["plays:a", "plays:b", "plays:c", "plays:d"]);
  assert.deepEqual(values.map(({ value }) => value), [LARGE, -LARGE, 2 ** 53 - 1, 12345678901234567.5]);
  assert.equal(values[3].id, JSON.parse(quotedId));
});

test("a value has the limit, the amount that is left and the end of the period as Tally answers them", async () => {
  const world = new World();
  const value = { counter: "calls", id: "a", value: 30, limit: 1000, resets_at: 1795392000 };
  world.server.faults = [textAnswer(JSON.stringify({ tallies: [value] }).replace('"limit"', `"left":-${LARGE},"limit"`))];
  assert.deepEqual(await world.openTab().values(["calls:a"]), [{ ...value, left: -LARGE }]);
});

test("an answer's number beyond 2^53 is a BigInt, in this tab and in another tab", async () => {
  const world = new World();
  const [page, otherTab] = [world.openTab(), world.openTab()];
  const numbersHeard = [];
  otherTab.addEventListener("change", ({ detail: { outcome } }) => outcome && numbersHeard.push(outcome.answer.number));
  world.server.faults = [textAnswer(`{"counter":"ticket","id":"desk","counted":true,"number":${LARGE}}`)];
  const { answer } = await world.resultOf(page.increment("ticket", "desk"));
  await world.runPending();
  assert.deepEqual([answer.number, ...numbersHeard], [LARGE, LARGE]);
});

test("reads return the numbers and likes in Tally's answer, and reject if another server answers", async () => {
  const world = new World();
  const page = world.openTab(ANN);
  const values = [{ counter: "plays", id: "9f3a", value: 42 }];
  world.server.faults = [() => json(200, { tallies: values }), captivePortal, () => refusal(400, "invalid-input"), requestLost];
  assert.deepEqual(await page.values(["plays:9f3a", "plays:9f3b"]), values);
  assert.deepEqual(world.server.requests[0].query.getAll("of"), ["plays:9f3a", "plays:9f3b"]);
  await assert.rejects(page.values(["plays:9f3a"]), /answered 200/);
  await assert.rejects(page.values(["plays:9f3a"]), /It is invalid-input/);
  await assert.rejects(page.mine(["hearts:article-1"]), /fetch failed/);
});
