// Tests of likes without sign-in, by the requests that the server got and by the items that the browser stores.

import assert from "node:assert/strict";
import { test } from "node:test";
import { API, HOUR_MS, World, json, refusal, token, requestLost, neverAnswers } from "./world.js";

const ANONYMOUS = { anonymous: true };
const SECRET = `tally1-own ${API} `; // the name of the secret's item; an item `${SECRET}counter id` is of a like
const ann = () => ({ user: () => "ann", token: () => token("ann") });
/** Ann's page reads the browser's likes, to take them over. Before Ann's page gets the answer, `page` puts the like if
 * `present`, or else deletes it, at a later time than the first like. So the answer is older than this change. */
const changeDuringRead = async (world, page, present) => {
  let deliverAnswer;
  world.server.faults = [(request, server) => new Promise((resolve) => (deliverAnswer = resolve.bind(null, server.answer(request))))];
  world.openTab(ann());
  await world.runPending();
  world.moveClock(1000);
  await world.resultOf(page.like("hearts", "home", present, ANONYMOUS));
  deliverAnswer();
};

test("a browser likes, reads its like after a reload, and deletes it, with a secret that is in a header and in no URL", async () => {
  const world = new World();
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  const page = world.openTab();
  assert.deepEqual(await world.resultOf(page.mine(["hearts:home", "hearts:other"])), [
    { counter: "hearts", id: "home", present: true },
    { counter: "hearts", id: "other", present: false },
  ]);
  const secret = world.shared.items.get(SECRET);
  assert.ok(secret.length >= 22);
  await world.resultOf(page.like("hearts", "home", false, ANONYMOUS));
  assert.equal(world.server.likers.size, 0);
  for (const { path, query, secret: header } of world.server.requests) {
    assert.equal(header, secret);
    assert.ok(!`${path}?${query}`.includes(secret));
  }
});

test("a like counts the user who is signed in, and a like without a user and without a secret throws", async () => {
  const world = new World();
  await world.resultOf(world.openTab(ann()).like("hearts", "home", true, ANONYMOUS));
  assert.deepEqual([...world.server.likers], ["hearts/home/ann"]);
  assert.throws(() => world.openTab().like("hearts", "home"), /nobody is signed in/, "the like is not anonymous");
  world.shared.full = true;
  assert.throws(() => world.openTab().like("hearts", "home", true, ANONYMOUS), /nobody is signed in/, "the storage keeps no secret");
  await assert.rejects(world.openTab().mine(["hearts:home"]), /nobody is signed in/);
});

test("the next page sends an unanswered like again, with the same key and secret", async () => {
  const world = new World();
  world.server.faults = [requestLost];
  world.openTab().like("hearts", "home", true, ANONYMOUS);
  await world.runPending();
  const next = world.closeTabs();
  next.openTab();
  await next.until(() => next.server.likers.size);
  const sent = next.server.sent;
  assert.equal(new Set(sent.map(({ key, secret }) => `${key} ${secret}`)).size, 1);
  assert.ok(sent.length > 1);
});

for (const [loss, lose, state] of [
  ["the storage was cleared", (storage) => storage.clear(), "superseded"],
  ["only its secret was deleted", (storage) => storage.items.delete(SECRET), "forgotten"],
])
  test(`a like that waits is not sent after ${loss}, and its outcome is ${state}`, async () => {
    const world = new World();
    world.navigator.onLine = false;
    const outcome = world.openTab().like("hearts", "home", true, ANONYMOUS);
    await world.runPending();
    lose(world.shared);
    world.navigator.onLine = true;
    world.fireEvent("online");
    assert.equal((await world.resultOf(outcome)).state, state);
    assert.deepEqual(world.server.sent, []);
  });

for (const time of ["abc", "null", "1e400"])
  test(`if the stored time of a like is ${time}, which is no number, the next page sends a like without an answer again`, async () => {
    const world = new World();
    world.shared.items.set(`${SECRET}hearts home`, time);
    world.server.faults = [requestLost];
    world.openTab().like("hearts", "home", true, ANONYMOUS);
    await world.runPending();
    const next = world.closeTabs();
    next.openTab();
    await next.until(() => next.server.likers.size);
    await next.until(() => Number(next.shared.items.get(`${SECRET}hearts home`)) > 1);
  });

test("a like gets a later time than the stored time of the last like, also if the stored time has a fraction of a millisecond", async () => {
  const world = new World();
  const before = Date.now() + HOUR_MS + 0.5;
  world.shared.items.set(`${SECRET}hearts home`, String(before));
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  assert.ok(Number(world.shared.items.get(`${SECRET}hearts home`)) > before);
});

for (const malformed of ["", "short", "ë\n and no header", "s".repeat(256)])
  test(`a malformed secret is not sent, and a like replaces it: ${JSON.stringify(malformed.slice(0, 9))}`, async () => {
    const world = new World();
    world.shared.items.set(SECRET, malformed);
    await assert.rejects(world.openTab().mine(["hearts:home"]), /nobody is signed in/);
    await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
    assert.notEqual(world.shared.items.get(SECRET), malformed);
    // The secret becomes malformed later: plays count, and a like that waits ends.
    world.shared.items.set(SECRET, malformed);
    assert.equal((await world.resultOf(world.openTab().increment("plays", "9f3a"))).state, "counted");
    world.navigator.onLine = false;
    const outcome = world.openTab().like("hearts", "home", false, ANONYMOUS);
    world.shared.items.set(SECRET, malformed);
    world.navigator.onLine = true;
    world.fireEvent("online");
    assert.equal((await world.resultOf(outcome)).state, "forgotten");
    assert.equal(world.server.sent.filter(({ method }) => method === "DELETE").length, 0);
  });

// A takeover has three requests, 0 to 2: it reads the browser's likes, puts the user's like, deletes the browser's like.
// The page closes at `lastRequest`. If `lastRequest` is 3, the page does not close before the end.
for (let lastRequest = 0; lastRequest < 4; lastRequest++)
  for (const arrives of [true, false])
    test(`a user who signs in takes over the like, although the page closes ${arrives ? "after" : "before"} request ${lastRequest} is handled`, async () => {
      const world = new World();
      await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
      let requests = 0;
      let fewestLikers = 1;
      const answerAndCountLikers = (request, server) => {
        const answer = server.answer(request);
        fewestLikers = Math.min(fewestLikers, server.likers.size);
        return answer;
      };
      const lastAnswer = (request, server) => (arrives && answerAndCountLikers(request, server), neverAnswers());
      world.server.faults = () => (requests++ === lastRequest ? lastAnswer : answerAndCountLikers);
      world.openTab(ann());
      for (let turn = 0; turn < 8; turn++) await world.runPending();
      const next = world.closeTabs();
      next.server.faults = () => answerAndCountLikers;
      next.openTab(ann());
      await next.until(() => next.server.likers.has("hearts/home/ann") && next.server.likers.size === 1);
      await next.until(() => [...next.shared.items.keys()].every((name) => !name.endsWith("hearts home")));
      assert.equal(fewestLikers, 1, "the number is never one too low");
    });

test("if a user's takeover of a like waits for a token, the next user does not take over the like", async () => {
  const world = new World();
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  const session = { user: "ann", token: () => Promise.reject(new Error("no token yet")) };
  world.openTab({ user: () => session.user, token: () => session.token() });
  await world.until(() => world.shared.entries.length);
  Object.assign(session, { user: "bob", token: () => token("bob") });
  world.openTab({ user: () => session.user, token: () => session.token() });
  for (let turn = 0; turn < 8; turn++) await world.runPending();
  Object.assign(session, { user: "ann", token: () => token("ann") });
  world.fireEvent("online");
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

test("if a user deletes a like, the client also deletes the browser's like", async () => {
  const world = new World();
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  // The page cannot read the browser's likes, so it takes over no like.
  world.server.faults = ({ path }) => (path === "/anonymous" ? requestLost : undefined);
  await world.resultOf(world.openTab(ann()).like("hearts", "home", false));
  await world.until(() => !world.server.likers.size);
});

test("a like is taken over, although a frozen page learns late that an earlier delete counted", async () => {
  const world = new World();
  delete world.navigator.locks;
  const [frozen, page] = [world.openTab(), world.openTab()];
  await world.resultOf(frozen.like("hearts", "home", true, ANONYMOUS));
  frozen.storage.listeners.length = 0;
  let deliverAnswer;
  world.server.faults = [(request, server) => new Promise((resolve) => (deliverAnswer = () => resolve(server.answer(request))))];
  frozen.like("hearts", "home", false, ANONYMOUS);
  await world.runPending();
  // The other page sends the same delete, and gets its answer first.
  page.retry();
  await world.until(() => !world.server.likers.size);
  world.moveClock(1000);
  await world.resultOf(page.like("hearts", "home", true, ANONYMOUS));
  deliverAnswer();
  await world.runPending();
  world.openTab(ann());
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

for (const [failure, faults] of [
  ["has no answer", [requestLost, () => refusal(503, "store-busy")]],
  ["is answered by another server", [() => json(200, { anonymous: [null] })]],
])
  test(`if the read of the likes to take over ${failure}, an open page reads the likes again`, async () => {
    const world = new World();
    await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
    world.server.faults = faults;
    world.openTab(ann());
    await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
  });

test("if a like counts while a page reads the likes to take over, the page reads the likes again", async () => {
  const world = new World();
  const page = world.openTab();
  await world.resultOf(page.like("hearts", "home", true, ANONYMOUS));
  await changeDuringRead(world, page, true);
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

test("a like that is deleted during the read of the likes to take over is not taken over", async () => {
  const world = new World();
  const page = world.openTab();
  await world.resultOf(page.like("hearts", "home", true, ANONYMOUS));
  await changeDuringRead(world, page, false);
  await world.runPending();
  assert.deepEqual([...world.server.likers, ...world.shared.entries], []);
});

test("a like of the browser that Tally does not have is not taken over, and its item is removed", async () => {
  const world = new World();
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  world.server.likers.clear();
  world.openTab(ann());
  await world.until(() => ![...world.shared.items.keys()].some((name) => name.endsWith("hearts home")));
  assert.equal(world.server.likers.size, 0);
});

test("if Tally refuses the user's like of a takeover, later pages do not send it again", async () => {
  const world = new World();
  await world.resultOf(world.openTab().like("hearts", "home", true, ANONYMOUS));
  world.server.faults = ({ path }) => (path.endsWith("/mine") ? () => refusal(409, "counter-retired") : undefined);
  for (let page = 0; page < 3; page++) {
    world.openTab(ann());
    await world.runPending();
  }
  assert.equal(world.server.sent.filter(({ path }) => path.endsWith("/mine")).length, 1);
});

test("forget() deletes all anonymous likes, also those that wait, and then deletes the secret", async () => {
  const world = new World();
  const page = world.openTab();
  for (const id of ["a", "b"]) await world.resultOf(page.like("hearts", id, true, ANONYMOUS));
  world.server.faults = [requestLost];
  page.like("hearts", "c", true, ANONYMOUS);
  await world.runPending();
  const outcomes = await world.resultOf(page.forget());
  assert.deepEqual(outcomes.map(({ state }) => state), ["counted", "counted", "counted"]);
  assert.equal(world.server.likers.size, 0);
  assert.deepEqual([...world.shared.items.keys()].filter((name) => name.startsWith(SECRET)), []);
  // Without likes forget() resolves, too.
  await page.forget();
  await page.forget(undefined);
});

test("if a page is closed during forget(), the next page deletes the other likes", async () => {
  const world = new World();
  const page = world.openTab();
  for (const id of ["a", "b"]) await world.resultOf(page.like("hearts", id, true, ANONYMOUS));
  world.server.faults = () => neverAnswers;
  page.forget();
  await world.runPending();
  const next = world.closeTabs();
  next.server.faults = [];
  next.openTab(ann());
  await next.until(() => !next.shared.items.has(SECRET));
  assert.equal(next.server.likers.size, 0, "no user takes over a forgotten like");
});

test("if it is in doubt whether forget() deleted a like, a later page deletes it", async () => {
  const world = new World();
  const page = world.openTab();
  await world.resultOf(page.like("hearts", "a", true, ANONYMOUS));
  world.server.faults = () => requestLost;
  page.forget();
  await world.runPending();
  const next = world.closeTabs();
  next.moveClock(30 * HOUR_MS); // the receipt of the delete may have expired
  next.server.faults = [];
  const annsPage = next.openTab(ann());
  await next.until(() => !next.shared.entries.length);
  await annsPage.mine([]); // `mine` would take over the likes
  await next.runPending();
  assert.equal(next.server.likers.size, 1, "the outcome is unknown, and no user takes over the like");
  assert.ok(!next.server.likers.has("hearts/a/ann"));
  next.openTab();
  await next.until(() => !next.shared.items.has(SECRET));
  assert.equal(next.server.likers.size, 0);
});

test("after a like that follows forget(), the browser keeps the secret", async () => {
  const world = new World();
  const page = world.openTab();
  await world.resultOf(page.like("hearts", "a", true, ANONYMOUS));
  const forgotten = page.forget();
  const liked = page.like("hearts", "b", true, ANONYMOUS);
  await world.resultOf(Promise.all([forgotten, liked]));
  assert.deepEqual([...world.server.likers].map((liker) => liker.split("/")[1]), ["b"]);
  assert.ok(world.shared.items.get(SECRET));
});
