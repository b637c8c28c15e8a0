// Random histories of pages, requests, storage, clocks and sign-ins. In each history a change counts at most once, and
// its caller learns the true outcome. After the faults end, no change waits. SEED is the first seed, SEEDS how many.

import assert from "node:assert/strict";
import { test } from "node:test";
import { API, HOUR_MS, MINUTE_MS, Model, token } from "./model.js";

const FIRST_SEED = Number(process.env.SEED ?? 1);
const SEEDS = Number(process.env.SEEDS ?? 12);
const STEPS = 120;
const DAY_MS = 24 * HOUR_MS;
const SINCE_1970_MS = Date.UTC(2026, 10, 22); // the clock of `Model` begins one day later
const SURE_RECEIPT_MS = 20 * HOUR_MS; // below 23 hours: the client does not use the last of a receipt's 24 hours
const USERS = ["ann", "bob"];
const VIDEOS = ["v1", "v2", "closed"];
const POSTS = ["post-1", "post-2"];

/** The random history of one browser. */
class History {
  /** The changes that callers made, with their outcomes. */
  changes = [];
  /** The changes of likes that callers or the client made, by their key, in their order. */
  likeChanges = new Map();
  /** The keys of changes that ended in doubt, perhaps in another page than the caller's. */
  doubtfulKeys = new Set();
  /** `user`: who is signed in. `signIn`: the sign-in's number. `failure`: how `user` or `token` fails, or "none". */
  session = { user: undefined, signIn: 0, failure: "none" };

  constructor(seed) {
    this.model = new Model(seed);
    this.random = this.model.chance;
    /** Whether the history takes days, so receipts expire. If not, clocks are set by hours or days. docs/browser.md says
     * why the client cannot handle both. */
    this.takesDays = this.random.often(0.5);
    /** Whether the storage never fails. */
    this.isStorageReliable = this.random.often(0.5);
    this.model.clock.node = this.random.often(0.4);
    /** Whether clocks are set forward by a time that a machine may sleep. A browser cannot tell this from a sleep. */
    this.setsClockForward = !this.takesDays && this.random.often(0.5);
    this.model.clock.setMs = this.takesDays ? 0 : this.random.pick([0, -SINCE_1970_MS, -2 * DAY_MS, 2 * DAY_MS, 7 * HOUR_MS]);
  }

  open() {
    const { session, model } = this;
    const tab = model.open({
      user: () => {
        if (session.failure === "user throws") throw new Error("no session");
        return session.user;
      },
      token: () => {
        if (session.failure === "token throws") throw new Error("no session");
        if (session.failure === "token hangs") return new Promise(() => {});
        if (session.failure === "no token") return null;
        return Promise.resolve(token(session.failure === "token of another user" ? "eve" : session.user, session.signIn));
      },
    });
    tab.client.addEventListener("change", ({ detail: { entry, outcome } }) => {
      if (outcome?.state === "doubt") this.doubtfulKeys.add(entry.key);
      if (entry.present == null || this.likeChanges.has(entry.key)) return;
      this.likeChanges.set(entry.key, { ...entry, tab, stored: !model.isStorageFull && !tab.isStorageDenied });
    });
    return tab;
  }

  get tab() {
    const awake = this.model.alive.filter(({ frozen }) => !frozen);
    return awake.length ? this.random.pick(awake) : this.open();
  }

  // Records a change. `promise`: the call's promise of the outcome.
  record(tab, fields, promise, key) {
    const change = { tab, ...fields, promise, key };
    promise.then((outcome) => Object.assign(change, { outcome, endedMs: this.model.clock.ms }));
    this.changes.push(change);
  }

  // Makes a change, and records the first entry that the client reports during the call.
  recordCall(tab, call) {
    const entries = [];
    const listen = ({ detail: { entry } }) => entries.push(entry);
    tab.client.addEventListener("change", listen);
    try {
      const promise = call();
      this.record(tab, { ...entries[0], stored: !this.model.isStorageFull && !tab.isStorageDenied }, promise, entries[0]?.key);
    } catch (error) {
      assert.match(error.message, /nobody is signed in/);
    }
    tab.client.removeEventListener("change", listen);
  }

  play(tab = this.tab) {
    const { random } = this;
    const signed = random.often(0.2);
    this.recordCall(tab, () => tab.client.increment(signed ? "usage" : "plays", random.pick(VIDEOS), { amount: random.pick([undefined, 1, 2n]), signed }));
  }

  like(tab = this.tab) {
    this.recordCall(tab, () => tab.client.like("hearts", this.random.pick(POSTS), this.random.often(0.5), { anonymous: this.random.often(0.7) }));
  }

  // Uses one of five keys, from any tab and perhaps with another amount. Receipts live longer than this history.
  repeatKey() {
    if (this.takesDays) return;
    const { tab, random } = this;
    const key = `job-${String(random.below(5)).padStart(24, "0")}`;
    const amount = random.pick([1, 1, 2]);
    this.record(tab, { counter: "plays", id: "own", amount, isRepeatedKey: true }, tab.client.increment("plays", "own", { key, amount }), key);
  }

  forgetBrowser() {
    this.tab.client.forget();
    this.forgotBrowser = true;
  }

  forgetUser() {
    const user = this.random.pick(USERS);
    this.tab.client.forget(user);
    for (const change of [...this.changes, ...this.likeChanges.values()]) if (change.user === user) change.forgotten = true;
  }

  // Stores an item that the client did not write. Names of the client's items are `user counter id key`.
  storeJunk() {
    const { storedItems } = this.model;
    const prefix = `tally1 ${API} `;
    const { random } = this;
    const names = ["x", "", "ann hearts post-1 k", " plays .. kkkkkkkkkkkkkkkkkkkkkkkk", " plays v1 kkkkkkkkkkkkkkkkkkkkkkkk"];
    const values = ["{}", "null", "{nonsense", "7", '{"at":1,"sent":0,"tries":"x"}', '{"counter":"plays","id":"..","at":null}'];
    storedItems.set(prefix + random.pick(names), random.pick(values));
  }

  passTime() {
    return this.model.pass(this.random.often(0.3) ? this.random.below(this.takesDays ? 30 : 2) * HOUR_MS : this.random.below(3 * MINUTE_MS));
  }

  sleep() {
    return this.model.sleep(this.random.below(this.takesDays ? 30 : 2) * HOUR_MS);
  }

  setClock() {
    const { clock } = this.model;
    const hours = () => (this.random.next() - 0.5) * 20 * HOUR_MS;
    if (this.takesDays) clock.setMs += hours() / 600;
    // A time service corrects a clock that began in 1970.
    else if (clock.setMs < -DAY_MS * 365) clock.setMs = 0;
    else if (this.setsClockForward) clock.setMs += this.random.pick([hours(), 2 * DAY_MS, -2 * DAY_MS]);
    else clock.setMs -= this.random.pick([Math.abs(hours()), 2 * DAY_MS]);
  }

  async step() {
    const { model, random, session } = this;
    const event = random.pick([
      "play", "play", "play", "like", "like", "like", "repeatKey", "repeatKey", "passTime", "passTime", "passTime", "sleep",
      "open", "close", "freeze", "thaw", "user", "token", "token", "network", "storageFull", "storageDenied", "setClock", "storeJunk", "faults",
      "retry", ...(random.often(0.2) ? ["forgetUser", "clear"] : []), ...(random.often(0.1) ? ["forgetBrowser"] : []),
    ]);
    // The event "open" opens a second tab if fewer than four tabs are open. `this[event]` below opens the first.
    if (event === "open" && model.alive.length < 4) this.open();
    if (event === "close") model.close(this.tab);
    if (event === "freeze") model.freeze(this.tab);
    if (event === "thaw") model.alive.filter(({ frozen }) => frozen).forEach((tab) => model.thaw(tab));
    if (event === "user") Object.assign(session, { user: random.pick([undefined, ...USERS]), signIn: session.signIn + 1 });
    if (event === "token")
      session.failure = random.pick(["none", "none", "token throws", "token hangs", "no token", "token of another user", "user throws"]);
    if (event === "network") model.isOnline = random.often(0.7);
    if (event === "storageFull" && !this.isStorageReliable) model.isStorageFull = random.often(0.4);
    if (event === "storageDenied" && !this.isStorageReliable) this.tab.isStorageDenied = random.often(0.4);
    if (event === "faults") model.faultShare = random.pick([0, 0.3, 0.7, 1]);
    if (event === "retry") this.tab.client.retry();
    if (event === "clear") {
      model.clear();
      this.cleared = true;
    }
    await this[event]?.call(this);
    await model.pass(random.below(5000));
  }

  /** Ends all faults, and signs each user in twice. */
  async recover() {
    const { model, session } = this;
    Object.assign(model, { faultShare: 0, isOnline: true, isStorageFull: false });
    for (const tab of model.alive) {
      if (tab.frozen) model.thaw(tab);
      tab.isStorageDenied = false;
    }
    // An anonymous change counts, even if `user` or `token` fails.
    this.open().client.increment("plays", "probe").then(({ state }) => (this.probe = state));
    await model.pass(2 * MINUTE_MS);
    // If a clock was set by hours or days, another page cannot tell how long ago the change was sent.
    assert.ok(this.probe === "counted" || (this.probe === "doubt" && !this.takesDays), `an anonymous play ended as ${this.probe}`);
    session.failure = "none";
    for (const user of [...USERS, ...USERS]) {
      Object.assign(session, { user, signIn: session.signIn + 1 });
      for (const tab of model.alive) tab.client.retry();
      await model.pass(2 * HOUR_MS);
    }
    this.last = this.open();
    await model.pass(10 * MINUTE_MS);
  }

  check() {
    const { model } = this;
    const { server } = model;
    assert.deepEqual(this.last.client.waiting(), [], "no change waits");
    for (const tab of model.alive) assert.deepEqual(tab.client.waiting(), [], "no page knows of a change that waits");
    for (const [key, times] of server.timesCounted) assert.equal(times, 1, `${key} is counted once`);
    for (const change of this.changes) {
      const { key, outcome, tab } = change;
      const reported = tab.outcomes.get(key) ?? [];
      // A denied change waits, and the page reports the change's later outcome.
      const end = outcome?.state === "denied" ? reported[0] : outcome;
      const label = `${change.counter}/${change.id} ${key}: ${JSON.stringify(outcome)}`;
      assert.ok(reported.length <= 1 || change.isRepeatedKey, `${label} is reported once`);
      if (!tab.dead) assert.ok(outcome, `${label}: the caller learns the outcome`);
      if (!end) continue;
      const times = server.timesCounted.get(key) ?? 0;
      if (end.state === "counted") assert.equal(times, 1, label);
      if (change.isRepeatedKey || this.cleared || server.askedWhileDelayed.has(key)) continue;
      if (end.state === "superseded" || end.state === "refused") assert.equal(times, 0, label);
      const anonymous = change.present != null && !change.user;
      if (end.state === "forgotten") assert.ok(change.forgotten || (anonymous ? this.forgotBrowser : times === 0), label);
    }
    this.checkLikes();
    this.checkAdoptions();
    this.checkDoubts();
  }

  // While a page lives, it knows how long ago it sent a change, even if its clock is set. So if only this page sent the
  // change and asked for its receipt, the change does not end in doubt while its receipt lives.
  checkDoubts() {
    const { model } = this;
    if (this.takesDays || this.cleared || !this.isStorageReliable || (this.setsClockForward && !model.clock.node)) return;
    for (const { key, outcome, tab, endedMs, isRepeatedKey } of this.changes) {
      const requests = model.requests.filter((request) => request.key === key || request.query.getAll("key").includes(key));
      const isOfOneTab = requests.some((request) => request.key === key) && requests.every((request) => request.tab === tab);
      if (isRepeatedKey || !isOfOneTab || endedMs - requests[0].sentMs > SURE_RECEIPT_MS) continue;
      assert.notEqual(outcome?.state, "doubt", `${key} was sent ${(endedMs - requests[0].sentMs) / MINUTE_MS} minutes before`);
    }
  }

  // Checks takeovers: the user's like counts before the client deletes the browser's like. At the end no like of the
  // browser is left.
  checkAdoptions() {
    const { server } = this.model;
    const callersKeys = new Set(this.changes.map(({ key }) => key));
    const changedByUser = new Set();
    for (const { operation, id, key } of server.likeChanges) {
      if (operation.endsWith("_mine")) changedByUser.add(id);
      if (operation === "delete_anonymous" && !callersKeys.has(key))
        assert.ok(this.forgotBrowser || changedByUser.has(id), `the likes of ${id} are one too low`);
    }
    const hasDoubts = [...this.likeChanges.keys()].some((key) => this.doubtfulKeys.has(key));
    if (!this.isStorageReliable || this.cleared || hasDoubts) return;
    const users = USERS.flatMap((user) => POSTS.map((id) => `${user} ${id}`));
    for (const [liker, present] of server.likes) assert.ok(users.includes(liker) || !present, `${liker} is not a user's like`);
  }

  // Checks that Tally has the last change of each user's like of each post, if no change of this like may be lost.
  checkLikes() {
    const lastChanges = new Map();
    // If the storage was full, only the page's memory has a denied change. If the page closes, the change is lost.
    const isLostInMemory = ({ tab, outcome }) => !this.isStorageReliable && tab.dead && outcome?.state === "denied";
    const mayBeLost = (change) => change.forgotten || this.doubtfulKeys.has(change.key) || !change.stored || isLostInMemory(change);
    const callers = new Map(this.changes.map((change) => [change.key, change]));
    for (const entry of this.likeChanges.values()) {
      const change = callers.get(entry.key) ?? { ...entry, outcome: entry.tab.outcomes.get(entry.key)?.[0] };
      if (!change.user) continue;
      const like = `${change.user} ${change.id}`;
      lastChanges.set(like, { change, isSure: !mayBeLost(change) && (lastChanges.get(like)?.isSure ?? true) });
    }
    if (this.cleared) return;
    for (const [like, { change, isSure }] of lastChanges)
      if (isSure) assert.equal(this.model.server.likes.get(like) ?? false, change.present, `${like}: ${JSON.stringify(change.outcome)}`);
  }
}

for (let seed = FIRST_SEED; seed < FIRST_SEED + SEEDS; seed++)
  test(`every change of the history of seed ${seed} counts at most once, and its caller learns the outcome`, async () => {
    const history = new History(seed);
    for (let step = 0; step < STEPS; step++) await history.step();
    const before = history.model.requests.length;
    await history.recover();
    history.check();
    const changes = history.changes.length + 1;
    assert.ok(history.model.requests.length - before < 20 * changes + 200, "without faults the client needs few requests");
  });
