// Likes without sign-in: each by what a server saw, and what a browser keeps.

import assert from "node:assert/strict";
import { test } from "node:test";
import { API, HOUR_MS, World, json, refusal, token, unsent } from "./world.js";

const ANYONE = { anonymous: true };
const SECRET = `tally1-own ${API} `;
const ann = () => ({ user: () => "ann", token: () => token("ann") });
const silent = () => new Promise(() => {});
// Ann's page looks for what to take over. The answer arrives after another page's like, or its end, has counted.
const lookOvertaken = async (world, page, present) => {
  let look;
  world.server.plan = [(request, server) => new Promise((done) => (look = done.bind(null, server.answer(request))))];
  world.tab(ann());
  await world.now();
  world.later(1000);
  await world.got(page.like("hearts", "home", present, ANYONE));
  look();
};

test("a browser likes, finds its like after a reload, and takes it back: by a header, and never in a URL", async () => {
  const world = new World();
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  const page = world.tab();
  assert.deepEqual(await world.got(page.mine(["hearts:home", "hearts:other"])), [
    { counter: "hearts", id: "home", present: true },
    { counter: "hearts", id: "other", present: false },
  ]);
  const secret = world.shared.items.get(SECRET);
  assert.ok(secret.length >= 22);
  await world.got(page.like("hearts", "home", false, ANYONE));
  assert.equal(world.server.likers.size, 0);
  for (const { path, query, secret: sent } of world.server.requests) {
    assert.equal(sent, secret);
    assert.ok(!`${path}?${query}`.includes(secret));
  }
});

test("who is signed in likes as a user, and who neither is nor may be anonymous does not", async () => {
  const world = new World();
  await world.got(world.tab(ann()).like("hearts", "home", true, ANYONE));
  assert.deepEqual([...world.server.likers], ["hearts/home/ann"]);
  assert.throws(() => world.tab().like("hearts", "home"), /nobody is signed in/);
  world.shared.full = true;
  assert.throws(() => world.tab().like("hearts", "home", true, ANYONE), /nobody is signed in/, "it keeps no secret");
  await assert.rejects(world.tab().mine(["hearts:home"]), /nobody is signed in/);
});

test("a like in doubt is sent again by the next page, under its key and its secret", async () => {
  const world = new World();
  world.server.plan = [unsent];
  world.tab().like("hearts", "home", true, ANYONE);
  await world.now();
  const next = world.close();
  next.tab();
  await next.until(() => next.server.likers.size);
  const sent = next.server.sent;
  assert.equal(new Set(sent.map(({ key, secret }) => `${key} ${secret}`)).size, 1);
  assert.ok(sent.length > 1);
});

test("whose storage was cleared likes no more: the secret is gone", async () => {
  const world = new World();
  const page = world.tab();
  world.navigator.onLine = false;
  const ended = page.like("hearts", "home", true, ANYONE);
  await world.now();
  world.shared.clear();
  world.navigator.onLine = true;
  world.fire("online");
  assert.equal((await world.got(ended)).state, "superseded");
  assert.deepEqual(world.server.sent, []);
});

test("a like whose secret alone is gone is not sent", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const ended = world.tab().like("hearts", "home", true, ANYONE);
  world.shared.items.delete(SECRET);
  world.navigator.onLine = true;
  world.fire("online");
  assert.equal((await world.got(ended)).state, "forgotten");
  assert.deepEqual(world.server.sent, []);
});

for (const note of ["abc", "null", "1e400"])
  test(`a note that no like left, ${note}, loses no like whose answer is lost`, async () => {
    const world = new World();
    world.shared.items.set(`${SECRET}hearts home`, note);
    world.server.plan = [unsent];
    world.tab().like("hearts", "home", true, ANYONE);
    await world.now();
    const next = world.close();
    next.tab();
    await next.until(() => next.server.likers.size);
    await next.until(() => Number(next.shared.items.get(`${SECRET}hearts home`)) > 1);
  });

test("a like is later than the last one, by a part of a millisecond, too", async () => {
  const world = new World();
  const before = Date.now() + HOUR_MS + 0.5;
  world.shared.items.set(`${SECRET}hearts home`, String(before));
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  assert.ok(Number(world.shared.items.get(`${SECRET}hearts home`)) > before);
});

for (const strange of ["", "short", "ë\n and no header", "s".repeat(256)])
  test(`what is no secret is none, and is not sent: ${strange.slice(0, 9)}`, async () => {
    const world = new World();
    world.shared.items.set(SECRET, strange);
    await assert.rejects(world.tab().mine(["hearts:home"]), /nobody is signed in/);
    await world.got(world.tab().like("hearts", "home", true, ANYONE));
    assert.notEqual(world.shared.items.get(SECRET), strange);
    world.shared.items.set(SECRET, strange);
    assert.equal((await world.got(world.tab().increment("plays", "9f3a"))).state, "counted");
    world.navigator.onLine = false;
    const ended = world.tab().like("hearts", "home", false, ANYONE);
    world.shared.items.set(SECRET, strange);
    world.navigator.onLine = true;
    world.fire("online");
    assert.equal((await world.got(ended)).state, "forgotten");
    assert.equal(world.server.sent.filter(({ method }) => method === "DELETE").length, 0);
  });

// The requests of an adoption: the look, the user's like, the end of the browser's.
for (let dies = 0; dies < 4; dies++)
  for (const arrives of [true, false])
    test(`who signs in takes the like over, with a page that dies at request ${dies}, ${arrives ? "after" : "before"} it counts`, async () => {
      const world = new World();
      await world.got(world.tab().like("hearts", "home", true, ANYONE));
      let asked = 0;
      let least = 1;
      const count = (request, server) => {
        const answer = server.answer(request);
        least = Math.min(least, server.likers.size);
        return answer;
      };
      world.server.plan = () => (asked++ === dies ? (request, server) => (arrives && count(request, server), silent()) : count);
      world.tab(ann());
      for (let turn = 0; turn < 8; turn++) await world.now();
      const next = world.close();
      next.server.plan = () => count;
      next.tab(ann());
      await next.until(() => next.server.likers.has("hearts/home/ann") && next.server.likers.size === 1);
      await next.until(() => [...next.shared.items.keys()].every((name) => !name.endsWith("hearts home")));
      assert.equal(least, 1, "never one too low");
    });

test("what one user is about to take over, the next one does not", async () => {
  const world = new World();
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  const who = { user: "ann", token: () => Promise.reject(new Error("no token yet")) };
  world.tab({ user: () => who.user, token: () => who.token() });
  await world.until(() => world.shared.entries.length);
  Object.assign(who, { user: "bob", token: () => token("bob") });
  world.tab({ user: () => who.user, token: () => who.token() });
  for (let turn = 0; turn < 8; turn++) await world.now();
  Object.assign(who, { user: "ann", token: () => token("ann") });
  world.fire("online");
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

test("what a user unlikes, this browser likes no more either", async () => {
  const world = new World();
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  world.server.plan = ({ path }) => (path === "/anonymous" ? unsent : undefined);
  await world.got(world.tab(ann()).like("hearts", "home", false));
  await world.until(() => !world.server.likers.size);
});

test("a page that was frozen hears late how it unliked: what was liked since is taken over", async () => {
  const world = new World();
  delete world.navigator.locks;
  const [frozen, page] = [world.tab(), world.tab()];
  await world.got(frozen.like("hearts", "home", true, ANYONE));
  frozen.storage.listeners.length = 0;
  let thaw;
  world.server.plan = [(request, server) => new Promise((done) => (thaw = () => done(server.answer(request))))];
  frozen.like("hearts", "home", false, ANYONE);
  await world.now();
  page.retry();
  await world.until(() => !world.server.likers.size);
  world.later(1000);
  await world.got(page.like("hearts", "home", true, ANYONE));
  thaw();
  await world.now();
  world.tab(ann());
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

for (const [what, plan] of [
  ["got no answer", [unsent, () => refusal(503, "store-busy")]],
  ["somebody else answers", [() => json(200, { anonymous: [null] })]],
])
  test(`a look that ${what} is tried again, on a page that stays as it is`, async () => {
    const world = new World();
    await world.got(world.tab().like("hearts", "home", true, ANYONE));
    world.server.plan = plan;
    world.tab(ann());
    await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
  });

test("a look that was overtaken by a like is tried again, on a page that stays as it is", async () => {
  const world = new World();
  const page = world.tab();
  await world.got(page.like("hearts", "home", true, ANYONE));
  await lookOvertaken(world, page, true);
  await world.until(() => world.server.likers.has("hearts/home/ann") && world.server.likers.size === 1);
});

test("a look that was overtaken takes over no like that was taken back", async () => {
  const world = new World();
  const page = world.tab();
  await world.got(page.like("hearts", "home", true, ANYONE));
  await lookOvertaken(world, page, false);
  await world.now();
  assert.deepEqual([...world.server.likers, ...world.shared.entries], []);
});

test("a like that Tally no longer knows is not taken over", async () => {
  const world = new World();
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  world.server.likers.clear();
  world.tab(ann());
  await world.until(() => ![...world.shared.items.keys()].some((name) => name.endsWith("hearts home")));
  assert.equal(world.server.likers.size, 0);
});

test("a user's like that is refused is asked for once", async () => {
  const world = new World();
  await world.got(world.tab().like("hearts", "home", true, ANYONE));
  world.server.plan = ({ path }) => (path.endsWith("/mine") ? () => refusal(409, "counter-retired") : undefined);
  for (let page = 0; page < 3; page++) {
    world.tab(ann());
    await world.now();
  }
  assert.equal(world.server.sent.filter(({ path }) => path.endsWith("/mine")).length, 1);
});

test("forget() takes all back, what waits too, and then drops the secret", async () => {
  const world = new World();
  const page = world.tab();
  for (const id of ["a", "b"]) await world.got(page.like("hearts", id, true, ANYONE));
  world.server.plan = [unsent];
  page.like("hearts", "c", true, ANYONE);
  await world.now();
  const outcomes = await world.got(page.forget());
  assert.deepEqual(outcomes.map(({ state }) => state), ["counted", "counted", "counted"]);
  assert.equal(world.server.likers.size, 0);
  assert.deepEqual([...world.shared.items.keys()].filter((name) => name.startsWith(SECRET)), []);
  await page.forget();
  await page.forget(undefined);
});

test("a page that is closed while it forgets leaves the rest to the next one", async () => {
  const world = new World();
  const page = world.tab();
  for (const id of ["a", "b"]) await world.got(page.like("hearts", id, true, ANYONE));
  world.server.plan = () => silent;
  page.forget();
  await world.now();
  const next = world.close();
  next.server.plan = [];
  next.tab(ann());
  await next.until(() => !next.shared.items.has(SECRET));
  assert.equal(next.server.likers.size, 0, "and nobody takes over what is forgotten");
});

test("a take-back in doubt is wished again by a later page", async () => {
  const world = new World();
  const page = world.tab();
  await world.got(page.like("hearts", "a", true, ANYONE));
  world.server.plan = () => unsent;
  page.forget();
  await world.now();
  const next = world.close();
  next.later(30 * HOUR_MS);
  next.server.plan = [];
  const doubts = next.tab(ann());
  await next.until(() => !next.shared.entries.length);
  await doubts.mine([]);
  await next.now();
  assert.equal(next.server.likers.size, 1, "nobody can tell, and nobody takes it over");
  assert.ok(!next.server.likers.has("hearts/a/ann"));
  next.tab();
  await next.until(() => !next.shared.items.has(SECRET));
  assert.equal(next.server.likers.size, 0);
});

test("who likes again after forget() keeps the secret", async () => {
  const world = new World();
  const page = world.tab();
  await world.got(page.like("hearts", "a", true, ANYONE));
  const forgotten = page.forget();
  const liked = page.like("hearts", "b", true, ANYONE);
  await world.got(Promise.all([forgotten, liked]));
  assert.deepEqual([...world.server.likers].map((one) => one.split("/")[1]), ["b"]);
  assert.ok(world.shared.items.get(SECRET));
});
