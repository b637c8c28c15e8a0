// Each change ends in bounded time in a way that its caller learns, or it waits and says why; and it holds up no other
// change, no other tab and no process.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mock, test } from "node:test";
import { pathToFileURL } from "node:url";
import { folder } from "../../tally/javascript/node.js";
import { Tally } from "../../tally/javascript/tally.js";
import { API, HOUR_MS, World, json, lost, refusal, token, unsent } from "./world.js";

const MINUTE_MS = 60e3;
const KEY = "playback-0000000000000001";
const ANN = { user: () => "ann", token: () => token("ann") };
const never = () => new Promise(() => {});
const gateway = (status) => () => json(status, { message: "Forbidden" });
const why = (page) => page.waiting().map((entry) => entry.why);
const named = (name, fields = {}) => [
  `tally1 ${API} ${name}`,
  JSON.stringify({ at: Date.now(), sent: 0, tries: 0, ...fields }),
];

for (const [what, options] of Object.entries({
  "user throws": { user: () => null.sub },
  "user rejects": { user: () => Promise.reject(new Error("no session")) },
  "token throws": { ...ANN, token: () => null.value },
  "token rejects": { ...ANN, token: () => Promise.reject(new Error("no session")) },
  "token hangs": { ...ANN, token: never },
  "token is an object": { ...ANN, token: () => ({ split: () => token("ann").split("."), toString: () => null.value }) },
  "token has a letter that no header holds": { ...ANN, token: () => `${token("ann")}\u0100` },
  "token has a line break": { ...ANN, token: () => `${token("ann")}\nx` },
  "token has a control character": { ...ANN, token: () => `${token("ann")}\u0001` },
  "token is of somebody else": { ...ANN, token: () => token("bob") },
}))
  test(`${what}: what is anonymous counts at once, here and in other tabs`, async () => {
    const world = new World();
    const [page, other] = [world.tab(options), world.tab()];
    if (page.user()) page.like("hearts", "article-1");
    else assert.throws(() => page.like("hearts", "article-1"), /nobody is signed in/);
    const ended = [page.increment("plays", "9f3a"), other.increment("plays", "9f3a")];
    await world.now();
    assert.deepEqual((await Promise.all(ended)).map(({ state }) => state), ["counted", "counted"]);
    await world.until(() => !page.user() || why(page)[0] === "no-token");
  });

test("no function of the page runs while a lock is held", async () => {
  const world = new World();
  const held = new Set();
  const { request } = world.navigator.locks;
  world.navigator.locks.request = (name, options, run) =>
    request(name, options, async () => {
      held.add(name);
      await run();
      held.delete(name);
    });
  const asked = [];
  const user = () => (asked.push(held.size), "ann");
  const page = world.tab({ user, token: () => (asked.push(held.size), token("ann")) });
  const ended = Array.from({ length: 20 }, (_, at) => page.like("hearts", `article-${at}`));
  await world.got(Promise.all(ended));
  assert.deepEqual([...new Set(asked)], [0]);
});

test("a lock that does not come in time is done without", async () => {
  const world = new World();
  world.navigator.locks.request("tally1 " + API + " ", { signal: new AbortController().signal }, never);
  const began = Date.now();
  const page = world.tab();
  const ended = Array.from({ length: 40 }, () => page.increment("plays", "9f3a"));
  await world.got(Promise.all(ended));
  assert.ok(Date.now() - began < 10e3);
  assert.equal(world.server.sent.length, 40);
});

test("an answer that does not come holds up its own change alone", async () => {
  const world = new World();
  world.server.plan = ({ path }) => (path.includes("hangs") ? never : undefined);
  const page = world.tab();
  const other = world.tab();
  for (let one = 0; one < 4; one++) page.increment("plays", "hangs");
  await world.now();
  const began = Date.now();
  await world.got(Promise.all([page, other].map((tab) => tab.increment("plays", "9f3a"))));
  assert.ok(Date.now() - began < 10e3, `${Date.now() - began} ms`);
  await world.until(() => Date.now() - began > MINUTE_MS);
  assert.ok(world.server.sent.length < 30, `${world.server.sent.length} requests`);
});

test("a page that cannot write how a change ended says it once, though another tab sends it again", async () => {
  const world = new World();
  const page = world.tab();
  const ends = [];
  page.addEventListener("change", ({ detail }) => detail.outcome && ends.push(detail.outcome.state));
  const denied = () => {
    throw new DOMException("denied", "SecurityError");
  };
  const broken = (request, server) => (Object.assign(page.storage, { setItem: denied, removeItem: denied }), server.answer(request));
  world.server.plan = [broken];
  await world.got(page.increment("plays", "9f3a"));
  const other = world.tab();
  await world.until(() => !other.waiting().length);
  assert.equal(world.server.sent.length, 2);
  assert.deepEqual(ends, ["counted"]);
});

test("a page that thaws says once how a change ended, though another tab has sent and settled it, too", async () => {
  const world = new World();
  const page = world.tab();
  const ends = [];
  page.addEventListener("change", ({ detail }) => detail.outcome && ends.push(detail.outcome.state));
  const events = [];
  const view = world.shared.tab();
  view.listeners.push((event) => events.push(event));
  await world.got(page.increment("plays", "9f3a"));
  // The answer came first. What the other tab wrote is the same, and reaches this page now.
  for (const event of events) for (const listener of page.storage.listeners) listener(event);
  await world.now();
  assert.deepEqual(ends, ["counted"]);
  assert.deepEqual(page.waiting(), []);
});

test("a key that is handed over again after it ended ends again", async () => {
  const world = new World();
  const page = world.tab();
  const ends = [];
  page.addEventListener("change", ({ detail }) => ends.push(detail.outcome?.state));
  const key = "job-000000000000000000001";
  for (let time = 0; time < 2; time++) await world.got(page.increment("plays", "9f3a", { key }));
  assert.deepEqual(ends.filter(Boolean), ["counted", "counted"]);
});

test("a page that is left asks for no lock", async () => {
  const world = new World();
  const page = world.tab();
  await world.got(page.increment("plays", "9f3a"));
  world.server.plan = () => unsent;
  page.increment("plays", "9f3a");
  await world.now();
  let asked = 0;
  world.navigator.locks.request = async () => void asked++;
  document.hidden = true;
  world.fire("visibilitychange");
  await world.now();
  assert.equal(asked, 0);
  document.hidden = false;
  world.fire("visibilitychange");
  await world.now();
  assert.equal(asked, 1);
});

for (const [what, id, options, sent] of [
  ["a number", 7, {}, "7"],
  ["a BigInt", 2n ** 70n, {}, "1180591620717411303424"],
  ["a number as its key", "9f3a", { key: 7, signed: true }, "9f3a"],
  ["a BigInt as its amount", "9f3a", { amount: 1n }, "9f3a"],
])
  test(`${what} counts`, async () => {
    const world = new World();
    const ended = await world.tab({ user: () => 7n, token: () => token(7) }).increment("plays", id, options);
    assert.equal(ended.state, "counted");
    assert.equal(world.server.counts.get(sent), 1);
  });

for (const amount of [1e15, 10n ** 15n, -1e15])
  test(`${typeof amount} ${amount} arrives as it is`, async () => {
    const world = new World();
    assert.equal((await world.tab().increment("plays", "9f3a", { amount })).state, "counted");
    assert.equal(world.server.counts.get("9f3a"), Number(amount));
  });

for (const [what, id, options] of [
  ["one dot", "."], ["two dots", ".."], ["nothing", undefined], ["empty", ""], ["too long", "x".repeat(257)], ["NaN", NaN],
  ["a half", 0.5], ["an object", {}], ["a list", ["7"]], ["true", true], ["a number sign", "a#b"], ["a line", "a\n"],
  ["a text as its amount", "a", { amount: "7" }], ["half an amount", "a", { amount: 0.5 }],
  ["too much", "a", { amount: 10n ** 15n + 1n }], ["no amount", "a", { amount: null }],
  ["a short key of a stranger", "a", { key: "job-1" }], ["a comma in its key", "a", { key: `${KEY},` }],
  ["no key", "a", { key: null }],
])
  test(`${what} is refused at the call, and nothing is stored`, () => {
    const world = new World();
    const page = world.tab(ANN);
    assert.throws(() => page.increment("plays", id, options), /TypeError: tally: .* is no (counter or id|amount|key)/s);
    assert.deepEqual(world.shared.entries, []);
  });

for (const status of [400, 401, 403, 404, 405, 413])
  test(`a ${status} of the gateway: its caller learns it, and nobody sends it again`, async () => {
    const world = new World();
    const warned = mock.method(console, "warn", () => {});
    world.server.plan = ({ method }) => (method === "GET" ? undefined : gateway(status));
    const page = world.tab(ANN);
    const said = [];
    page.addEventListener("change", ({ detail: { entry } }) => said.push(entry.why));
    const ended = [page.increment("usage", "7c20"), page.increment("usage", "7c21"), page.like("hearts", "article-1")];
    assert.deepEqual(await Promise.all(ended), Array(3).fill({ state: "denied", status }));
    assert.deepEqual(page.waiting().map(({ why, status, sent }) => [why, status, sent]), Array(3).fill(["denied", status, 0]));
    assert.ok(said.includes("denied"));
    assert.deepEqual(warned.mock.calls.map(({ arguments: [line] }) => line.match(/answers (\d+ to changes of \w+)/)[1]), [
      `${status} to changes of usage`, `${status} to changes of hearts`,
    ]);
    warned.mock.restore();
    const { length } = world.server.sent;
    const began = Date.now();
    await world.until(() => Date.now() - began > 3 * HOUR_MS, MINUTE_MS * 10);
    world.fire("visibilitychange");
    await world.now();
    assert.equal(world.server.sent.length, length);
    world.server.plan = [];
    page.retry();
    await world.until(() => !page.waiting().length);
    assert.equal(world.server.sent.length, length + 3);
  });

test("what is denied goes with another token, and without its page's doing from another page", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  let scope = "";
  const signed = () => `${token("ann")}${scope}`;
  world.server.plan = ({ headers }) => (headers.authorization?.endsWith("write") ? undefined : gateway(403));
  const page = world.tab({ user: () => "ann", token: signed });
  assert.equal((await page.increment("usage", "7c20", { signed: true })).state, "denied");
  assert.equal((await page.increment("plays", "9f3a")).state, "denied");
  scope = "write";
  await world.until(() => world.server.counts.get("7c20") === 1);
  const next = world.close();
  next.server.plan = [];
  next.tab();
  await next.until(() => next.server.counts.get("9f3a") === 1);
});

test("who hands over what another tab has made learns that it is denied", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  world.server.plan = () => gateway(404);
  const [page, other] = [world.tab(), world.tab()];
  await page.increment("plays", "9f3a", { key: KEY });
  await world.until(() => why(other)[0] === "denied");
  const ended = other.increment("plays", "9f3a", { key: KEY });
  other.retry();
  assert.equal((await world.got(ended)).state, "denied");
});

test("a later wish does not wait behind one that was denied", async () => {
  const world = new World();
  mock.method(console, "warn", () => {});
  world.server.plan = [gateway(403)];
  const page = world.tab(ANN);
  await page.like("hearts", "article-1");
  let last;
  page.addEventListener("change", ({ detail: { outcome } }) => (last = outcome));
  page.like("hearts", "article-1", false);
  await world.until(() => last?.state === "counted");
  assert.deepEqual(page.waiting(), []);
});

test("a wish is not superseded where the storage cannot say whether another tab has sent it", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.tab(ANN);
  let first;
  page.like("hearts", "article-1").then(({ state }) => (first = state));
  for (const view of world.shared.tabs) view.getItem = () => assert.fail();
  page.like("hearts", "article-1", false);
  world.navigator.onLine = true;
  world.fire("online");
  await world.now();
  assert.notEqual(first, "superseded");
});

test("a browser that says it is offline is not believed for ever, and nothing is in doubt meanwhile", async () => {
  const world = new World();
  world.navigator.onLine = false;
  world.server.plan = () => unsent;
  const page = world.tab();
  const ended = Array.from({ length: 9 }, () => page.increment("plays", "9f3a"));
  const began = Date.now();
  await world.until(() => Date.now() - began > 10 * MINUTE_MS, 1000);
  assert.deepEqual([...new Set(page.waiting().map(({ why, sent }) => `${why} ${sent}`))], ["offline 0"]);
  assert.ok(world.server.requests.length < 40);
  world.server.plan = [];
  await world.got(Promise.all(ended));
  assert.equal(world.server.counts.get("9f3a"), 9);
});

test("a server that asks for less than no time is left alone as if it asked for none", async () => {
  const world = new World();
  world.server.plan = () => (world.server.requests.length > 50 ? never : () => json(429, {}, { "retry-after": "-0.001" }));
  const page = world.tab();
  for (let at = 0; at < 5; at++) page.increment("plays", `video-${at}`);
  const began = Date.now();
  await world.until(() => Date.now() - began > MINUTE_MS);
  assert.ok(world.server.requests.length < 20, String(world.server.requests.length));
});

test("a token may end with a line break, as a file does", async () => {
  const world = new World();
  const page = world.tab({ user: () => "ann", token: () => `${token("ann")}\n` });
  assert.equal((await world.got(page.like("hearts", "article-1"))).state, "counted");
  assert.equal(world.server.sent[0].headers.authorization, `Bearer ${token("ann")}`);
});

test("a user who is no text is refused at the call, and nothing is stored", () => {
  const world = new World();
  const page = world.tab({ user: () => "ann\ud800", token: () => token("ann\ud800") });
  for (const call of [() => page.like("hearts", "article-1"), () => page.increment("plays", "9f3a", { signed: true })])
    assert.throws(call, /TypeError: tally: .* is no user/);
  assert.deepEqual(world.shared.entries, []);
});

test("who forgets nobody forgets nothing", async () => {
  const world = new World();
  world.navigator.onLine = false;
  const page = world.tab();
  page.increment("plays", "9f3a");
  page.forget(undefined);
  assert.equal(page.waiting().length, 1);
});

test("what is forgotten while a token is awaited stays forgotten", async () => {
  const world = new World();
  let give;
  const page = world.tab({ user: () => "ann", token: () => new Promise((done) => (give = done)) });
  const other = world.tab();
  const ended = page.like("hearts", "article-1");
  await world.now();
  other.forget("ann");
  await world.now();
  give(token("ann"));
  await world.now();
  assert.equal((await ended).state, "forgotten");
  assert.deepEqual([world.shared.entries, world.server.sent], [[], []]);
});

test("what is forgotten while it is sent stays forgotten", async () => {
  const world = new World();
  let fail;
  world.server.plan = [() => new Promise((_, reject) => (fail = reject))];
  const page = world.tab(ANN);
  page.like("hearts", "article-1");
  await world.now();
  page.forget("ann");
  fail(new TypeError("fetch failed"));
  const began = Date.now();
  await world.until(() => Date.now() - began > MINUTE_MS);
  assert.deepEqual([world.shared.entries, world.server.sent.length], [[], 1]);
});

for (const [what, answer, end] of [
  ["denied", () => json(403, { message: "Forbidden" }), "denied"],
  ["refused", () => refusal(404, "not-found"), "superseded"],
])
  test(`a wish that another tab took out of the storage stays out when the question for it is ${what}`, async () => {
    const world = new World();
    const page = world.tab(ANN);
    world.server.plan = [unsent];
    const wish = page.like("hearts", "article-1");
    await world.now();
    world.shared.items.clear();
    world.server.plan = ({ method }) => method === "GET" && answer;
    assert.equal((await world.got(wish)).state, end);
    assert.deepEqual([world.shared.entries, world.server.sent.length], [[], 1]);
  });

test("what others wrote under the client's names is left alone, and hides nothing", async () => {
  const world = new World();
  for (const [name, value] of [
    named("x"), named(""), named(" plays . " + KEY), named(" plays a/b " + KEY), named(" plays 9f3a k more"),
    [named(" plays 9f3a " + KEY)[0], "{}"], [named(" plays 9f3b " + KEY)[0], "null"], [named(" plays 9f3c " + KEY)[0], "{nonsense"],
    named("ann hearts article-1 " + KEY, { present: "yes" }),
  ])
    world.shared.items.set(name, value);
  world.shared.items.set(...named(" plays 9f3d " + KEY, { counter: "usage", id: "..", key: "k", user: "eve" }));
  const page = world.tab(ANN);
  await world.until(() => !page.waiting().length);
  assert.deepEqual(world.server.sent.map(({ path }) => path), ["/counters/plays/9f3d/increments"]);
});

test("a folder without room keeps no half of a change", { skip: process.platform === "win32" }, () => {
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  // A file may have 1 KB here. The system writes that much, and refuses the rest.
  const program = `import { folder } from "${new URL("../../tally/javascript/node.js", import.meta.url)}";
    try { folder("${path}").setItem("name", "x".repeat(3000)); } catch {}`;
  const limited = `trap "" XFSZ; ulimit -f 1; exec "$0" --input-type=module --eval "$1"`;
  assert.equal(spawnSync("bash", ["-c", limited, process.execPath, program]).status, 0);
  assert.equal(folder(path).length, 0);
});

test("a folder stays where it was when it was given, and is a path", () => {
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  const before = process.cwd();
  process.chdir(path);
  const outbox = folder("outbox");
  process.chdir(before);
  outbox.setItem("name", "text");
  assert.equal(folder(join(path, "outbox")).getItem("name"), "text");
  assert.throws(() => folder(pathToFileURL(path)), TypeError);
});

test("a folder may hold other things", async () => {
  const world = new World();
  const path = mkdtempSync(join(tmpdir(), "tally-"));
  mkdirSync(join(path, "lost+found"));
  mkdirSync(join(path, "0".repeat(64)));
  writeFileSync(join(path, ".DS_Store"), "x");
  world.server.plan = () => unsent;
  new Tally({ api: API, storage: folder(path) }).increment("plays", "9f3a");
  await world.now();
  const next = world.close();
  next.server.plan = [];
  new Tally({ api: API, storage: folder(path) });
  await next.until(() => next.server.counts.get("9f3a") === 1);
});

test("a backlog is read twice", async () => {
  const world = new World();
  for (let at = 0; at < 500; at++) world.shared.items.set(...named(` plays 9f3a ${KEY}-${at}`));
  const storage = world.shared.tab();
  const { getItem } = storage;
  let reads = 0;
  storage.getItem = (name) => (reads++, getItem(name));
  world.server.plan = (request) => (request.key.endsWith("7") && request.key !== KEY && !seen.has(request.key) ? (seen.add(request.key), lost) : undefined);
  const seen = new Set();
  new Tally({ api: API, storage });
  await world.until(() => world.server.counts.get("9f3a") === 500, 5000);
  await world.until(() => !world.shared.entries.length, 5000);
  assert.ok(reads <= 500 * 2 + 50 * 2 + 10, `${reads} reads`);
});

test("numbers are asked for in parts of 6 KB, and a part without an answer fails alone", async () => {
  const world = new World();
  const pages = Array.from({ length: 120 }, (_, at) => `visits:https://example.jp/${"記".repeat(20)}${at}`);
  const sizes = [];
  world.server.plan = ({ path, query }) => {
    sizes.push(`${path}?${query}`.length);
    if (sizes.length === 2) return unsent;
    return () => json(200, { tallies: query.getAll("of").map((of) => ({ counter: "visits", id: of.slice(7), value: 1 })) });
  };
  const values = await world.tab().values(pages);
  assert.ok(Math.max(...sizes) < 6100 && sizes.length > 3, sizes.join());
  assert.deepEqual(values.map(({ counter, id }) => `${counter}:${id}`), pages);
  const failed = values.filter(({ error }) => error);
  assert.ok(failed.length > 9 && failed.length < 60);
  assert.equal(failed[0].error.detail, "fetch failed");
});

test("what is in doubt is asked for together, and one that cannot be asked for alone", async () => {
  const world = new World();
  const sent = Date.now();
  for (let at = 0; at < 300; at++) {
    const [name, value] = named(` plays v${at} ${KEY}-${at}`, { sent, tries: 1 });
    world.shared.items.set(name, value);
    if (at % 3) world.server.answer({ method: "POST", path: `/counters/plays/v${at}/increments`, key: `${KEY}-${at}`, query: new URLSearchParams() });
  }
  world.later(2 * HOUR_MS);
  world.server.plan = ({ query }) => (query.getAll("key").includes(`${KEY}-150`) ? () => refusal(400, "invalid-input") : undefined);
  const page = world.tab();
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.counts.size, 300);
  assert.equal(world.server.sent.length, 100);
  const asked = world.server.requests.filter(({ path }) => path === "/receipts");
  assert.ok(asked.length < 120, `${asked.length} questions`);
});

const old = (world, counter, key) =>
  world.shared.items.set(...named(` ${counter} old ${KEY}-${key}`, { sent: Date.now() - 2 * HOUR_MS, tries: 1 }));

test("what is in doubt of a counter that Tally does not name waits until a deployment declares it, and holds up no other", async () => {
  const world = new World();
  for (const counter of ["constructor", "plays", "votes"]) old(world, counter, 1);
  const page = world.tab();
  await world.now();
  assert.equal(world.server.sent.length, 1);
  await world.until(() => world.server.requests.length > 20);
  assert.deepEqual(page.waiting().map(({ counter, why, sent }) => [counter, why, sent > 0]).sort(), [
    ["constructor", "unanswered", true], ["votes", "unanswered", true],
  ]);
  assert.deepEqual(world.server.sent.map(({ path }) => path), ["/counters/plays/old/increments"]);
  Object.assign(world.server.livesS, { votes: 24 * 3600, constructor: 24 * 3600 });
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.counts.get("old"), 3);
});

test("how long receipts live is asked each time: a deployment may change it", async () => {
  const world = new World();
  old(world, "plays", 1);
  const page = world.tab();
  await world.until(() => world.server.sent.length === 1);
  world.server.livesS.plays = 2 * 3600;
  old(world, "plays", 2);
  page.retry();
  await world.until(() => !page.waiting().length);
  assert.equal(world.server.sent.length, 1);
});

test("receipts that cannot be asked for hold up no other change", async () => {
  const world = new World();
  world.shared.items.set(...named(` plays old ${KEY}`, { sent: Date.now() - 2 * HOUR_MS, tries: 1 }));
  world.server.plan = ({ path }) => (path === "/receipts" ? () => json(429, {}) : undefined);
  const page = world.tab();
  const ended = Array.from({ length: 20 }, () => page.increment("plays", "9f3a"));
  await world.got(Promise.all(ended));
  assert.deepEqual(why(page), ["unanswered"]);
});

for (const [what, spoil] of Object.entries({
  "fills up": ({ shared }) => (shared.full = true),
  "cannot be changed any more": (world) => Object.assign(world.views[0], { setItem: () => assert.fail(), removeItem: () => assert.fail() }),
}))
  test(`a storage that ${what} before a change is sent makes no double`, async () => {
    const world = new World();
    world.views = [...world.shared.tabs];
    const page = world.tab();
    world.views = [...world.shared.tabs];
    world.server.plan = [lost];
    const ended = page.increment("plays", "9f3a");
    spoil(world);
    await world.now();
    if (!world.server.sent.length) return assert.deepEqual(why(page), ["storage"]);
    world.server.receipts.clear();
    world.later(30 * HOUR_MS);
    world.server.aheadMs = -30 * HOUR_MS;
    assert.equal((await world.got(ended)).state, "doubt");
    assert.equal(world.server.counts.get("9f3a"), 1);
  });

test("a key that waits with another amount is refused at once, as Tally would refuse it", async () => {
  const world = new World();
  world.server.plan = [never];
  const page = world.tab();
  page.increment("usage", "7c20", { key: KEY, amount: 5 });
  const { state, answer } = await page.increment("usage", "7c20", { key: KEY, amount: 9 });
  assert.deepEqual([state, answer.status, answer.type], ["refused", 422, "urn:problem-type:tally:key-reused"]);
  assert.equal(page.waiting().length, 1);
});

test("a key that waits without an amount is judged by Tally", async () => {
  const world = new World();
  const page = world.tab();
  world.server.plan = [undefined, () => refusal(422, "key-reused")];
  const ended = [page.increment("usage", "7c20", { key: KEY }), page.increment("usage", "7c20", { key: KEY, amount: 9 })];
  assert.deepEqual((await world.got(Promise.all(ended))).map(({ state }) => state), ["counted", "refused"]);
});

test("two clients of one page share what waits", async () => {
  const world = new World();
  const storage = world.shared.tab();
  const pages = [0, 1].map(() => new Tally({ api: API, storage, ...ANN }));
  const heard = [0, 0];
  pages.forEach((page, at) => page.addEventListener("change", ({ detail }) => detail.outcome && heard[at]++));
  const ended = pages.flatMap((page) => [page.increment("plays", "9f3a"), page.like("hearts", `${pages.indexOf(page)}`)]);
  assert.deepEqual((await world.got(Promise.all(ended))).map(({ state }) => state), Array(4).fill("counted"));
  assert.deepEqual(heard, [4, 4]);
  assert.equal(world.server.sent.length, 4);
});
