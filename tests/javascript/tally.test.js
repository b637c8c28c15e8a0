// The promises of the client, each by what a server saw and what a storage holds.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Tally } from "../../tally/javascript/tally.js";
import { API, HOUR_MS, World, json, lost, refusal, token, unsent } from "./world.js";

const ANN = { user: () => "ann", token: () => token("ann") };
const portal = () => new Response("<h1>Sign in to the Wi-Fi</h1>", { status: 200 });
const silent = () => new Promise(() => {});

test("a change is stored before it is sent, in the task of the click", async () => {
  const world = new World();
  let stored;
  world.server.plan = [() => ((stored = world.shared.entries), unsent())];
  world.tab().increment("plays", "9f3a");
  assert.equal(world.server.requests.length, 0);
  assert.equal(world.shared.entries.length, 1);
  await world.now();
  assert.equal(stored[0].key, world.server.requests[0].key);
  assert.ok(stored[0].sent > 0, "and that it is sent is stored before it is sent");
});

test("a lost answer: the same key is sent again, and counts once", async () => {
  const world = new World();
  world.server.plan = [lost, unsent, lost];
  const ended = await world.got(world.tab().increment("plays", "9f3a"));
  assert.equal(ended.state, "counted");
  assert.equal(ended.replayed, true);
  assert.equal(new Set(world.server.sent.map(({ key }) => key)).size, 1);
  assert.equal(world.server.sent.length, 4);
  assert.equal(world.server.counts.get("9f3a"), 1);
  assert.deepEqual(world.shared.entries, []);
});

test("a page that is closed loses nothing: the next one sends what it left", async () => {
  const world = new World();
  world.server.plan = (request) => (request.path.includes("unsent") ? unsent : (one, server) => (server.answer(one), silent()));
  const page = world.tab();
  page.increment("plays", "counted");
  page.increment("plays", "unsent");
  await world.now();
  const next = world.close();
  next.server.plan = [];
  next.tab();
  await next.until(() => !next.shared.entries.length);
  assert.deepEqual(Object.fromEntries(next.server.counts), { counted: 1, unsent: 1 });
});

for (const [what, answer] of Object.entries({
  "a page of a captive portal": portal,
  "JSON of somebody else": () => json(200, { ok: true, counted: true }),
  "an answer for another id": () => json(200, { counter: "plays", id: "other", counted: true }),
  "a 500": () => json(500, { message: "Internal Server Error" }),
  "Tally's own 503": () => refusal(503, "busy", { "retry-after": "1" }),
  "a 429": () => json(429, { message: "Too Many Requests" }),
}))
  test(`${what} settles nothing`, async () => {
    const world = new World();
    world.server.plan = [answer, answer];
    const ended = await world.got(world.tab().increment("plays", "9f3a"));
    assert.equal(ended.state, "counted");
    assert.equal(world.server.counts.get("9f3a"), 1);
    assert.equal(world.server.sent.length, 3);
  });

test("JSON of somebody else that no text can be made of denies one change, and holds up no other", async () => {
  const world = new World();
  world.server.plan = [() => json(400, { type: { toString: 1 } })];
  const page = world.tab();
  const denied = page.increment("plays", "denied");
  await world.now();
  assert.equal((await world.got(page.increment("plays", "other"))).state, "counted");
  assert.deepEqual(await world.got(denied), { state: "denied", status: 400 });
});

test("a refusal of Tally's ends a change, and says why", async () => {
  const world = new World();
  world.server.plan = [() => refusal(409, "limit-reached")];
  const ended = await world.got(world.tab().increment("plays", "9f3a"));
  assert.equal(ended.state, "refused");
  assert.equal(ended.answer.detail, "It is limit-reached.");
  assert.deepEqual(world.shared.entries, []);
});

test("a busy server is left alone for as long as it says", async () => {
  const world = new World();
  world.server.plan = [() => refusal(503, "busy", { "retry-after": "40" })];
  const page = world.tab();
  page.increment("plays", "9f3a");
  await world.now();
  const began = Date.now();
  page.increment("plays", "9f3b");
  await world.until(() => world.server.sent.length > 1);
  assert.ok(Date.now() - began >= 40e3);
  await world.until(() => world.server.counts.size === 2);
});

test("after a failure one change tries alone, so that a dead network leaves one in doubt", async () => {
  const world = new World();
  const page = world.tab();
  world.server.plan = () => unsent;
  page.increment("plays", "first");
  await world.until(() => world.server.sent.length === 3);
  for (let one = 0; one < 20; one++) page.increment("plays", "more");
  await world.until(() => world.server.sent.length === 6);
  assert.equal(world.shared.entries.filter(({ sent }) => sent).length, 4);
});

test("what is in doubt for over an hour is asked: it counted, and is not sent again", async () => {
  const world = new World();
  world.server.plan = [lost];
  const page = world.tab();
  page.increment("plays", "9f3a");
  await world.now();
  const next = world.close();
  next.later(30 * HOUR_MS);
  next.server.requests = [];
  const ended = await next.got(
    new Promise((done) => next.tab().addEventListener("change", ({ detail }) => detail.outcome && done(detail.outcome)))
  );
  assert.equal(ended.state, "counted");
  assert.deepEqual(next.server.sent, []);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

for (const [what, hours, state, counts] of [
  ["within the life of a receipt it is sent again", 22, "counted", 1],
  ["after it nobody can tell, and it is not sent", 24, "doubt", undefined],
])
  test(`what is in doubt and unknown to Tally: ${what}`, async () => {
    const world = new World();
    world.server.plan = [unsent];
    world.tab().increment("plays", "9f3a");
    await world.now();
    const next = world.close();
    next.later(hours * HOUR_MS);
    next.server.requests = [];
    const outcomes = [];
    next.tab().addEventListener("change", ({ detail }) => detail.outcome && outcomes.push(detail.outcome.state));
    await next.until(() => outcomes.length);
    assert.deepEqual(outcomes, [state]);
    assert.equal(next.server.counts.get("9f3a"), counts);
    assert.deepEqual(next.server.requests.slice(0, 2).map(({ path }) => path), ["/receipts", "/health"]);
  });

test("a change that was never sent is sent after a month", async () => {
  const world = new World();
  world.navigator.onLine = false;
  world.tab().increment("plays", "9f3a");
  await world.now();
  assert.equal(world.server.requests.length, 0);
  const next = world.close();
  next.later(30 * 24 * HOUR_MS);
  next.tab();
  await next.until(() => next.server.counts.get("9f3a") === 1);
  assert.equal(next.server.requests.length, 1);
});

test("a clock that was set back is noticed: the change is asked for", async () => {
  const world = new World();
  world.server.plan = [lost];
  world.tab().increment("plays", "9f3a");
  await world.now();
  const next = world.close();
  next.later(-5 * HOUR_MS);
  next.tab();
  await next.until(() => !next.shared.entries.length);
  assert.equal(next.server.sent.length, 1);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("ages are in the server's time: a clock that is a year behind, and set right, loses nothing", async () => {
  const world = new World();
  const year = 365 * 24 * HOUR_MS;
  world.server.aheadMs = year;
  const page = world.tab();
  await world.got(page.increment("plays", "first"));
  world.server.plan = [unsent];
  page.increment("plays", "9f3a");
  await world.now();
  const next = world.close();
  next.server.aheadMs = 0;
  next.later(year + 2 * HOUR_MS);
  next.tab();
  await next.until(() => !next.shared.entries.length);
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("offline nothing is sent and nothing is in doubt; online it goes at once", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const ended = world.tab().increment("plays", "9f3a");
  await world.now();
  assert.equal(world.shared.entries[0].sent, 0);
  world.navigator.onLine = true;
  world.fire("online");
  assert.equal((await ended).state, "counted");
});

test("one change that always fails does not hold up the others", async () => {
  const world = new World();
  world.server.plan = ({ path }) => (path.includes("poison") ? () => json(500, {}) : undefined);
  const page = world.tab();
  page.increment("plays", "poison");
  await world.now();
  for (let one = 0; one < 20; one++) page.increment("plays", "9f3a");
  await world.now();
  assert.equal(world.server.counts.get("9f3a"), 20);
});

test("likes are wishes in order: the last one wins, and a later one waits for the answer to an earlier", async () => {
  const world = new World();
  const page = world.tab(ANN);
  let answer;
  world.server.plan = [(request, server) => new Promise((done) => (answer = () => done(server.answer(request))))];
  const ended = [true, false, true, false].map((present) => page.like("hearts", "article-1", present));
  await world.now();
  assert.deepEqual(world.server.sent.map(({ method }) => method), ["DELETE"], "those that were never sent give way");
  ended.push(page.like("hearts", "article-1", true));
  await world.now();
  assert.equal(world.server.sent.length, 1);
  answer();
  assert.deepEqual((await Promise.all(ended)).map(({ state }) => state), [
    "superseded", "superseded", "superseded", "counted", "counted",
  ]);
  assert.deepEqual([...world.server.likers], ["hearts/article-1/ann"]);
});

test("a wish in doubt is settled before the next one goes, also in a new page", async () => {
  const world = new World();
  world.server.plan = [lost];
  world.tab(ANN).like("hearts", "article-1");
  await world.now();
  const next = world.close();
  next.server.plan = [unsent, lost];
  const ended = next.tab(ANN).like("hearts", "article-1", false);
  assert.equal((await next.got(ended)).state, "counted");
  assert.deepEqual(next.server.sent.map(({ method }) => method), ["PUT", "PUT", "PUT", "PUT", "DELETE"]);
  assert.deepEqual([...next.server.likers], []);
});

test("wishes keep their order when the clock is set back between them", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.tab(ANN);
  page.like("hearts", "article-1", true);
  world.later(-HOUR_MS);
  const ended = page.like("hearts", "article-1", false);
  world.navigator.onLine = true;
  world.fire("online");
  assert.equal((await world.got(ended)).state, "counted");
  assert.deepEqual(world.server.sent.map(({ method }) => method), ["DELETE"]);
});

test("who signs in while another user's changes are under way sends none of those", async () => {
  const world = new World();
  const who = { user: "ann" };
  const page = world.tab({ user: () => who.user, token: () => token(who.user) });
  const answers = [];
  world.server.plan = (request) => (request.caller === "ann" ? (_, server) => new Promise((done) => answers.push(() => done(server.answer(request)))) : undefined);
  for (let one = 0; one < 6; one++) page.like("hearts", `post-${one}`);
  await world.now();
  assert.equal(answers.length, 4, "so many go together");
  who.user = "bob";
  page.like("hearts", "bobs");
  for (const answer of answers) answer();
  await world.until(() => world.server.likers.has("hearts/bobs/bob"));
  assert.deepEqual([...world.server.likers].filter((one) => one.endsWith("/bob")), ["hearts/bobs/bob"]);
  assert.deepEqual(page.waiting().map(({ id, user }) => `${id} ${user}`).sort(), ["post-4 ann", "post-5 ann"]);
});

test("a like goes with its own user's token, and with nobody else's", async () => {
  const world = new World();
  const who = { user: "ann", token: token("bob") };
  let asked = 0;
  const page = world.tab({ user: () => who.user, token: () => (asked++, who.token) });
  const ended = page.like("hearts", "article-1");
  await world.until(() => world.server.sent.length === 0 && Date.now() > Date.UTC(2026, 10, 23, 0, 5));
  assert.ok(asked > 1);
  Object.assign(who, { user: "bob", token: token("bob") });
  asked = 0;
  page.retry();
  await world.now();
  assert.deepEqual(world.server.requests, []);
  assert.equal(asked, 0, "while somebody else is signed in");
  Object.assign(who, { user: "ann", token: token("ann") });
  page.retry();
  assert.equal((await world.got(ended)).state, "counted");
  assert.deepEqual(world.server.sent.map(({ caller }) => caller), ["ann"]);
});

test("an expired token is asked for once more, fresh", async () => {
  const world = new World();
  const asked = [];
  world.server.plan = [() => json(401, { message: "Unauthorized" })];
  const page = world.tab({ user: () => "ann", token: (fresh) => (asked.push(fresh), token("ann")) });
  page.like("hearts", "article-1");
  await world.now();
  assert.deepEqual(asked, [false, true]);
  assert.equal(world.server.likers.size, 1);
});

test("who is not signed in is told so, and so is who names a wrong counter or id", () => {
  const page = new World().tab();
  assert.throws(() => page.like("hearts", "article-1"), /nobody is signed in/);
  assert.throws(() => page.increment("usage", "7c20", { signed: true }), /nobody is signed in/);
  assert.throws(() => page.increment("plays"), /undefined is no counter or id/);
  assert.throws(() => page.increment("plays", "a#b"), /a#b is no counter or id/);
  assert.throws(() => new Tally({ api: "api.example.com" }), /api must be an address/);
});

test("a play needs no preflight", async () => {
  const world = new World();
  world.tab(ANN).increment("plays", "9f3a", { amount: 1 });
  await world.now();
  assert.deepEqual(world.server.sent.map(({ headers, path }) => [headers, path]), [[{}, "/counters/plays/9f3a/increments"]]);
});

for (const [what, spoil] of Object.entries({
  "is full": ({ shared }) => (shared.full = true),
  "is forbidden": (world) => (world.shared.tab = () => ({ listeners: [] })),
  "has nonsense in it": ({ shared }) => shared.items.set(`tally1 ${API} x`, "{nonsense"),
}))
  test(`while the page lives it counts exactly, although the storage ${what}`, async () => {
    const world = new World();
    spoil(world);
    world.server.plan = [lost, unsent];
    const page = world.tab(ANN);
    const ended = await world.got(Promise.all([page.increment("plays", "9f3a"), page.like("hearts", "article-1")]));
    assert.deepEqual(ended.map(({ state }) => state), ["counted", "counted"]);
    assert.equal(world.server.counts.get("9f3a"), 1);
    assert.deepEqual(page.waiting(), []);
  });

test("a storage that is cleared loses no count, and undoes no wish", async () => {
  const world = new World();
  const page = world.tab(ANN);
  world.server.plan = () => unsent;
  const ended = Promise.all([page.increment("plays", "9f3a"), page.like("hearts", "article-1")]);
  await world.now();
  world.shared.clear();
  world.server.plan = [];
  const [count, wish] = await world.got(ended);
  assert.equal(count.state, "counted");
  assert.equal(wish.state, "superseded");
  assert.equal(world.server.counts.get("9f3a"), 1);
});

test("one tab sends at a time, and each tab learns how its changes ended", async () => {
  const world = new World();
  const tabs = [world.tab(), world.tab(), world.tab()];
  let flying = 0;
  let most = 0;
  world.server.plan = () => async (request, server) => {
    most = Math.max(most, ++flying);
    await new Promise(setImmediate);
    flying--;
    return server.answer(request);
  };
  const ended = tabs.flatMap((tab) => Array.from({ length: 20 }, () => tab.increment("plays", "9f3a")));
  const states = (await world.got(Promise.all(ended))).map(({ state, replayed }) => [state, replayed].join());
  assert.deepEqual([...new Set(states)], ["counted,false"]);
  assert.equal(world.server.sent.length, 60);
  assert.equal(world.server.counts.get("9f3a"), 60);
  assert.equal(most, 4);
});

test("without locks it counts exactly too", async () => {
  const world = new World();
  delete world.navigator.locks;
  const tabs = [world.tab(), world.tab()];
  world.server.plan = (request) => (request.key.charCodeAt(0) % 2 ? undefined : [lost, unsent][world.server.requests.length % 2]);
  const ended = tabs.flatMap((tab) => Array.from({ length: 20 }, () => tab.increment("plays", "9f3a")));
  await world.until(() => world.server.sent.length > 60);
  world.server.plan = [];
  await world.got(Promise.all(ended));
  assert.equal(world.server.counts.get("9f3a"), 40);
});

test("a tab that ends between an answer and its removal leaves nothing to send", async () => {
  const world = new World();
  const entry = { counter: "plays", id: "9f3a", key: "k", at: Date.now(), sent: Date.now(), tries: 1 };
  world.shared.items.set(`tally1 ${API}  plays 9f3a k`, JSON.stringify({ ...entry, outcome: { state: "counted" } }));
  assert.deepEqual(world.tab().waiting(), []);
  await world.now();
  assert.deepEqual(world.server.requests, []);
  assert.deepEqual(world.shared.entries, []);
});

test("a key of the caller's own counts once, and keeps when it was sent", async () => {
  const world = new World();
  const key = "playback-0000000000000001";
  world.server.plan = [lost];
  const page = world.tab();
  assert.equal(page.increment("plays", "9f3a", { key }), page.increment("plays", "9f3a", { key }));
  await world.now();
  const next = world.close();
  next.later(2 * HOUR_MS);
  next.server.requests = [];
  assert.equal((await next.got(next.tab().increment("plays", "9f3a", { key }))).state, "counted");
  assert.deepEqual(next.server.sent, [], "it was asked for");
  assert.equal(next.server.counts.get("9f3a"), 1);
});

test("a server that never answers is given up on, and asked again", async () => {
  const world = new World();
  world.server.plan = [({ signal }) => new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason)))];
  assert.equal((await world.got(world.tab().increment("plays", "9f3a"), 1000)).state, "counted");
});

test("who signs out on a shared machine leaves nothing", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.tab(ANN);
  const ended = page.like("hearts", "article-1");
  page.increment("plays", "9f3a");
  page.forget("ann");
  assert.equal((await ended).state, "forgotten");
  assert.deepEqual(page.waiting().map(({ counter }) => counter), ["plays"]);
});

// JSON of any size, as Tally writes it: JSON.stringify cannot.
const written = (text) => () => new Response(text, { status: 200 });
const LARGE = 2n ** 53n + 1n;

test("a number that no Number holds is exact, and every other one is a Number", async () => {
  const world = new World();
  const said = `"1234567890123456789, \\" 12345678901234567890"`;
  world.server.plan = [written(`{"tallies":[{"value":${LARGE}},{"value":-${LARGE}},{"value":${2 ** 53 - 1}},{"value":12345678901234567.5,"id":${said}}]}`)];
  const values = await world.tab().values(["plays:a", "plays:b", "plays:c", "plays:d"]);
  assert.deepEqual(values.map(({ value }) => value), [LARGE, -LARGE, 2 ** 53 - 1, 12345678901234567.5]);
  assert.equal(values[3].id, JSON.parse(said));
});

test("a limited number says its limit, what is left and until when", async () => {
  const world = new World();
  const said = { counter: "calls", id: "a", value: 30, limit: 1000, resets_at: 1795392000 };
  world.server.plan = [written(JSON.stringify({ tallies: [said] }).replace('"limit"', `"left":-${LARGE},"limit"`))];
  assert.deepEqual(await world.tab().values(["calls:a"]), [{ ...said, left: -LARGE }]);
});

test("the answer to a change has such a number, here and in another tab", async () => {
  const world = new World();
  const [page, other] = [world.tab(), world.tab()];
  const heard = [];
  other.addEventListener("change", ({ detail: { outcome } }) => outcome && heard.push(outcome.answer.number));
  world.server.plan = [written(`{"counter":"ticket","id":"desk","counted":true,"number":${LARGE}}`)];
  const { answer } = await world.got(page.increment("ticket", "desk"));
  await world.now();
  assert.deepEqual([answer.number, ...heard], [LARGE, LARGE]);
});

test("numbers and one's own likes are what Tally said; anything else is an error", async () => {
  const world = new World();
  const page = world.tab(ANN);
  const said = [{ counter: "plays", id: "9f3a", value: 42 }];
  world.server.plan = [() => json(200, { tallies: said }), portal, () => refusal(400, "invalid-input"), unsent];
  assert.deepEqual(await page.values(["plays:9f3a", "plays:9f3b"]), said);
  assert.deepEqual(world.server.requests[0].query.getAll("of"), ["plays:9f3a", "plays:9f3b"]);
  await assert.rejects(page.values(["plays:9f3a"]), /answered 200/);
  await assert.rejects(page.values(["plays:9f3a"]), /It is invalid-input/);
  await assert.rejects(page.mine(["hearts:article-1"]), /fetch failed/);
});
