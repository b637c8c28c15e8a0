// Whatever happens to pages, requests, storage, clocks and sign-ins: each change counts at most once, what a caller learns
// is so, and when the weather is calm again nothing waits. SEEDS and SEED choose how many worlds, and the first.

import assert from "node:assert/strict";
import { test } from "node:test";
import { API, HOUR_MS, MINUTE_MS, Model, token } from "./model.js";

const FIRST = Number(process.env.SEED ?? 1);
const SEEDS = Number(process.env.SEEDS ?? 12);
const STEPS = 120;
const DAY_MS = 24 * HOUR_MS;
const SINCE_1970_MS = Date.UTC(2026, 10, 22);
const USERS = ["ann", "bob"];
const VIDEOS = ["v1", "v2", "closed"];
const POSTS = ["post-1", "post-2"];

/** One browser through a storm, with what its users did. */
class Story {
  made = [];
  /** Every wish of the browser's by its key, in their order: those of callers, and those that the client makes itself. */
  wishes = new Map();
  who = { user: undefined, nth: 0, how: "well" };

  constructor(seed) {
    this.model = new Model(seed);
    this.random = this.model.chance;
    // Either clocks are set by hours, or receipts end: both together is a limit of the client that its page names.
    this.days = this.random.often(0.5);
    /** Whether the storage always takes and gives what it should. */
    this.roomy = this.random.often(0.5);
    this.model.clock.node = this.random.often(0.4);
    /** Whether somebody sets clocks forward by less than a machine may sleep: a browser cannot tell one from the other. */
    this.forward = !this.days && this.random.often(0.5);
    this.model.clock.setMs = this.days ? 0 : this.random.one([0, -SINCE_1970_MS, -2 * DAY_MS, 2 * DAY_MS, 7 * HOUR_MS]);
  }

  open() {
    const { who, model } = this;
    const tab = model.open({
      user: () => {
        if (who.how === "user throws") throw new Error("no session");
        return who.user;
      },
      token: () => {
        if (who.how === "throws") throw new Error("no session");
        if (who.how === "hangs") return new Promise(() => {});
        if (who.how === "gives nothing") return null;
        return Promise.resolve(token(who.how === "gives another's" ? "eve" : who.user, who.nth));
      },
    });
    tab.client.addEventListener("change", ({ detail: { entry } }) => {
      if (entry.present == null || this.wishes.has(entry.key)) return;
      this.wishes.set(entry.key, { ...entry, tab, stored: !model.full && !tab.broken });
    });
    return tab;
  }

  get tab() {
    const able = this.model.alive.filter(({ frozen }) => !frozen);
    return able.length ? this.random.one(able) : this.open();
  }

  note(tab, change, promise, key) {
    const entry = { tab, ...change, promise, key };
    promise.then((outcome) => Object.assign(entry, { told: outcome, endedMs: this.model.clock.ms }));
    this.made.push(entry);
  }

  // The entry that the call has just made: the client says it in the same task.
  watch(tab, call) {
    const found = [];
    const listen = ({ detail: { entry } }) => found.push(entry);
    tab.client.addEventListener("change", listen);
    try {
      const promise = call();
      this.note(tab, { ...found[0], stored: !this.model.full && !tab.broken }, promise, found[0]?.key);
    } catch (error) {
      assert.match(error.message, /nobody is signed in/);
    }
    tab.client.removeEventListener("change", listen);
  }

  play(tab = this.tab) {
    const { random } = this;
    const signed = random.often(0.2);
    this.watch(tab, () => tab.client.increment(signed ? "usage" : "plays", random.one(VIDEOS), { amount: random.one([undefined, 1, 2n]), signed }));
  }

  like(tab = this.tab) {
    this.watch(tab, () => tab.client.like("hearts", this.random.one(POSTS), this.random.often(0.5), { anonymous: this.random.often(0.7) }));
  }

  // The same key twice, from whatever tab, perhaps with another amount; while its receipt lives.
  again() {
    if (this.days) return;
    const { tab, random } = this;
    const key = `job-${String(random.below(5)).padStart(24, "0")}`;
    const amount = random.one([1, 1, 2]);
    this.note(tab, { counter: "plays", id: "own", amount, own: true }, tab.client.increment("plays", "own", { key, amount }), key);
  }

  takeBack() {
    this.tab.client.forget();
    this.tookBack = true;
  }

  forget() {
    const user = this.random.one(USERS);
    this.tab.client.forget(user);
    for (const entry of [...this.made, ...this.wishes.values()]) if (entry.user === user) entry.forgotten = true;
  }

  junk() {
    const { items } = this.model;
    const prefix = `tally1 ${API} `;
    const { random } = this;
    const names = ["x", "", "ann hearts post-1 k", " plays .. kkkkkkkkkkkkkkkkkkkkkkkk", " plays v1 kkkkkkkkkkkkkkkkkkkkkkkk"];
    const values = ["{}", "null", "{nonsense", "7", '{"at":1,"sent":0,"tries":"x"}', '{"counter":"plays","id":"..","at":null}'];
    items.set(prefix + random.one(names), random.one(values));
  }

  sleep() {
    return this.model.pass(this.random.often(0.3) ? this.random.below(this.days ? 30 : 2) * HOUR_MS : this.random.below(3 * MINUTE_MS));
  }

  /** Whoever opens the machine again finds what waited. */
  doze() {
    return this.model.sleep(this.random.below(this.days ? 30 : 2) * HOUR_MS);
  }

  setClock() {
    const { clock } = this.model;
    const by = () => (this.random.next() - 0.5) * 20 * HOUR_MS;
    if (this.days) clock.setMs += by() / 600;
    // Once the time service has spoken, a clock that began in 1970 is right.
    else if (clock.setMs < -DAY_MS * 365) clock.setMs = 0;
    else if (this.forward) clock.setMs += this.random.one([by(), 2 * DAY_MS, -2 * DAY_MS]);
    else clock.setMs -= this.random.one([Math.abs(by()), 2 * DAY_MS]);
  }

  async step() {
    const { model, random, who } = this;
    const what = random.one([
      "play", "play", "play", "like", "like", "like", "again", "again", "sleep", "sleep", "sleep", "doze", "open", "close", "freeze", "thaw", "user", "token",
      "token", "online", "full", "broken", "clock", "junk", "weather", "retry", ...(random.often(0.2) ? ["forget", "clear"] : []),
      ...(random.often(0.1) ? ["takeBack"] : []),
    ]);
    if (what === "open" && model.alive.length < 4) this.open();
    if (what === "close") model.close(this.tab);
    if (what === "freeze") model.freeze(this.tab);
    if (what === "thaw") model.alive.filter(({ frozen }) => frozen).forEach((tab) => model.thaw(tab));
    if (what === "user") Object.assign(who, { user: random.one([undefined, ...USERS]), nth: who.nth + 1 });
    if (what === "token") who.how = random.one(["well", "well", "throws", "hangs", "gives nothing", "gives another's", "user throws"]);
    if (what === "online") model.online = random.often(0.7);
    if (what === "full" && !this.roomy) model.full = random.often(0.4);
    if (what === "broken" && !this.roomy) this.tab.broken = random.often(0.4);
    if (what === "clock") this.setClock();
    if (what === "weather") model.faults = random.one([0, 0.3, 0.7, 1]);
    if (what === "retry") this.tab.client.retry();
    if (what === "clear") {
      model.clear();
      this.cleared = true;
    }
    await this[what]?.call(this);
    await model.pass(random.below(5000));
  }

  /** The weather is calm, and each user comes back. */
  async calm() {
    const { model, who } = this;
    Object.assign(model, { faults: 0, online: true, full: false });
    for (const tab of model.alive) {
      if (tab.frozen) model.thaw(tab);
      tab.broken = false;
    }
    // Whatever the page does with its users: who is anonymous is served.
    const other = this.open();
    other.client.increment("plays", "probe").then(({ state }) => (this.probe = state));
    await model.pass(2 * MINUTE_MS);
    // Where clocks were set by days, another page cannot tell how long ago it was sent.
    assert.ok(this.probe === "counted" || (this.probe === "doubt" && !this.days), `an anonymous play ended: ${this.probe}`);
    who.how = "well";
    for (const user of [...USERS, ...USERS]) {
      Object.assign(who, { user, nth: who.nth + 1 });
      for (const tab of model.alive) tab.client.retry();
      await model.pass(2 * HOUR_MS);
    }
    this.last = this.open();
    await model.pass(10 * MINUTE_MS);
  }

  judge() {
    const { model, made } = this;
    const { server } = model;
    assert.deepEqual(this.last.client.waiting(), [], "nothing waits");
    for (const tab of model.alive) assert.deepEqual(tab.client.waiting(), [], "and no page knows better");
    for (const [key, times] of server.applied) assert.equal(times, 1, `${key} is counted once`);
    for (const entry of made) {
      const { key, told, tab } = entry;
      const ended = told?.state === "denied" ? tab.hears.get(key)?.[0] : told;
      const what = `${entry.counter}/${entry.id} ${key}: ${JSON.stringify(told)}`;
      assert.ok((tab.hears.get(key) ?? []).length <= 1 || entry.own, `${what} is told once`);
      if (!tab.dead) assert.ok(told, `${what}: its caller learns it`);
      if (!ended) continue;
      const times = server.applied.get(key) ?? 0;
      if (ended.state === "counted") assert.equal(times, 1, what);
      if (entry.own || this.cleared || server.overtaken.has(key)) continue;
      if (ended.state === "superseded" || ended.state === "refused") assert.equal(times, 0, what);
      const anonymous = entry.present != null && !entry.user;
      if (ended.state === "forgotten") assert.ok(entry.forgotten || (anonymous ? this.tookBack : times === 0), what);
    }
    this.judgeWishes();
    this.judgeAdoptions();
    this.judgeDoubts();
  }

  // A page that lives knows how long ago it sent something, however its clock is set: it gives nothing up. Another page
  // that asks for it knows only the clock.
  judgeDoubts() {
    const { model } = this;
    if (this.days || this.cleared || !this.roomy || (this.forward && !model.clock.node)) return;
    for (const { key, told, tab, endedMs, own } of this.made) {
      const sent = model.requests.filter((request) => request.key === key || request.query.getAll("key").includes(key));
      const alone = sent.some((request) => request.key === key) && sent.every((request) => request.tab === tab);
      if (own || !alone || endedMs - sent[0].at > 20 * HOUR_MS) continue;
      assert.notEqual(told?.state, "doubt", `${key} was sent ${(endedMs - sent[0].at) / MINUTE_MS} minutes before`);
    }
  }

  // Who signs in has their like counted before that of their browser goes. In the end somebody has taken over each.
  judgeAdoptions() {
    const { server } = this.model;
    const own = new Set(this.made.map(({ key }) => key));
    const settled = new Set();
    for (const { of, id, key } of server.wishes) {
      if (of.endsWith("_mine")) settled.add(id);
      if (of === "delete_anonymous" && !own.has(key)) assert.ok(this.tookBack || settled.has(id), `${id}: one too low`);
    }
    const doubts = [...this.wishes.values()].some(({ key, tab }) => tab.hears.get(key)?.[0].state === "doubt");
    if (!this.roomy || this.cleared || doubts) return;
    const users = USERS.flatMap((user) => POSTS.map((id) => `${user} ${id}`));
    for (const [of, present] of server.likers) assert.ok(users.includes(of) || !present, `${of} is nobody's`);
  }

  // The last wish of each user for each post is what Tally knows, if other tabs could know of all of them.
  judgeWishes() {
    const last = new Map();
    // A full storage may give back what a page then has in its memory alone.
    const alone = ({ tab, told }) => !this.roomy && tab.dead && told?.state === "denied";
    const lost = (wish) => wish.forgotten || wish.told?.state === "doubt" || !wish.stored || alone(wish);
    const made = new Map(this.made.map((one) => [one.key, one]));
    for (const one of this.wishes.values()) {
      const wish = made.get(one.key) ?? { ...one, told: one.tab.hears.get(one.key)?.[0] };
      if (!wish.user) continue;
      const of = `${wish.user} ${wish.id}`;
      last.set(of, { wish, sure: !lost(wish) && (last.get(of)?.sure ?? true) });
    }
    if (this.cleared) return;
    for (const [of, { wish, sure }] of last)
      if (sure) assert.equal(this.model.server.likers.get(of) ?? false, wish.present, `${of}: ${JSON.stringify(wish.told)}`);
  }
}

for (let seed = FIRST; seed < FIRST + SEEDS; seed++)
  test(`world ${seed}`, async () => {
    const story = new Story(seed);
    for (let step = 0; step < STEPS; step++) await story.step();
    const before = story.model.requests.length;
    await story.calm();
    story.judge();
    const waited = story.made.length + 1;
    assert.ok(story.model.requests.length - before < 20 * waited + 200, "calm weather needs few requests");
  });
