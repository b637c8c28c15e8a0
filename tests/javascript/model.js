// A world with a clock, a network and chance of its own, in which tabs of one browser come and go, freeze, lose their
// storage and their sign-in, while requests get lost, late, refused and made up. All of it follows from a seed.

import { readFileSync } from "node:fs";

export const API = "https://api.example.com";
export const MINUTE_MS = 60e3;
export const HOUR_MS = 3600e3;
const LIFE_MS = 24 * HOUR_MS;
const START_MS = Date.UTC(2026, 10, 23);
const LATE_MS_MAX = 60e3;
const PROBLEM = "urn:problem-type:tally:";

// What a tab finds around it. The client takes them from its globals.
const GLOBALS = [
  "globalThis", "setTimeout", "clearTimeout", "fetch", "Date", "Math", "performance", "crypto", "console", "localStorage", "document",
];
const source = readFileSync(new URL("../../tally/javascript/tally.js", import.meta.url), "utf8");
const load = new Function(...GLOBALS, source.replaceAll("import.meta.url", "''").replace(/^export (?!class)/gm, "").replace("export class", "return class"));

/** Numbers from 0 to 1 by a seed: mulberry32. */
export const chance = (seed) => {
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (most) => Math.floor(next() * most);
  return { next, below, one: (of) => of[below(of.length)], often: (share) => next() < share };
};

export const token = (sub, nth) => `e30.${btoa(JSON.stringify({ sub, nth })).replace(/=/g, "")}.signature`;

/** Tally itself, without faults. `applied`: how often each key was counted. */
class Server {
  applied = new Map();
  likers = new Map();
  /** The keys that are under way, and those of them that somebody asked for meanwhile: nobody can tell how they end. */
  late = new Set();
  overtaken = new Set();
  /** The wishes that changed something, in their order. */
  wishes = [];
  receipts = new Map();

  constructor(clock) {
    this.clock = clock;
  }

  answer(request) {
    const { path, query, caller } = request;
    const headers = { date: new Date(START_MS + this.clock.ms).toUTCString() };
    if (path === "/health") return [200, { receipts_live_s: { plays: LIFE_MS / 1e3, hearts: LIFE_MS / 1e3, usage: LIFE_MS / 1e3 } }, headers];
    if (path.startsWith("/receipts")) return [200, { receipts: this.asked(query, path.endsWith("/own") ? caller : "") }, headers];
    const who = request.secret ?? caller;
    if (path === "/anonymous") {
      const asked = query.getAll("of").map((one) => one.split(":"));
      return [200, { anonymous: asked.map(([counter, id]) => ({ counter, id, present: !!this.likers.get(`${who} ${id}`) })) }, headers];
    }
    const [, , counter, id, what] = path.split("/");
    const present = request.method === "PUT";
    if ((what === "mine" || counter === "usage") && !caller) return [401, { message: "Unauthorized" }, headers];
    const of = what === "increments" ? "increment" : `${present ? "put" : "delete"}_${what}`;
    const name = [of, `${counter}/${id}`, caller ?? "", request.key].join();
    const receipt = this.receipts.get(name);
    if (receipt && receipt.until > this.clock.ms) {
      if (receipt.amount !== request.amount) return [422, { type: `${PROBLEM}key-reused`, detail: "It is another change." }, headers];
      return [200, receipt.body, { ...headers, "idempotency-replayed": "true" }];
    }
    if (id === "closed") return [409, { type: `${PROBLEM}limit-reached`, detail: "It does not go further." }, headers];
    const body = what === "increments" ? { counter, id, counted: true } : { counter, id, present, changed: true };
    this.receipts.set(name, { amount: request.amount, body, until: this.clock.ms + LIFE_MS });
    this.applied.set(request.key, (this.applied.get(request.key) ?? 0) + 1);
    if (what !== "increments") this.likers.set(`${who} ${id}`, present);
    if (what !== "increments") this.wishes.push({ of, id, key: request.key });
    return [200, body, headers];
  }

  asked(query, caller) {
    const targets = query.getAll("target");
    return query.getAll("key").map((key, at) => {
      const receipt = this.receipts.get([query.get("of"), targets[at], caller, key].join());
      if (this.late.has(key)) this.overtaken.add(key);
      return receipt?.until > this.clock.ms ? { state: "counted", answer: receipt.body } : { state: "unknown" };
    });
  }
}

/** What else may answer, or nobody. */
const MADE_UP = [
  [503, { type: `${PROBLEM}busy` }, { "retry-after": "7" }], [503, { message: "Service Unavailable" }], [429, { message: "Too many" }],
  [500, { message: "Internal Server Error" }], [504, null], [401, { message: "Unauthorized" }], [403, { message: "Forbidden" }],
  [404, { message: "Not Found" }], [400, "<h1>Bad request</h1>"], [200, "<h1>Sign in to the Wi-Fi</h1>"], [200, null], [200, []],
  [200, { counted: true, present: true }], [200, { counter: "plays", id: "other", counted: true }], [302, {}], [200, { receipts: [null] }],
  [200, { receipts: {} }], [200, { anonymous: [null] }], [400, { type: { toString: 1 } }], [503, null, { "retry-after": "soon" }],
];

export class Model {
  /** How long the world, and its machine while it was awake, have run; by how much its clock was set; whether it is Node. */
  clock = { ms: 0, sleptMs: 0, setMs: 0, node: false };
  timers = new Set();
  items = new Map();
  locks = new Map();
  tabs = [];
  requests = [];
  faults = 0;
  online = true;
  full = false;

  constructor(seed) {
    this.chance = chance(seed);
    this.server = new Server(this.clock);
  }

  // --- time

  timer(tab, run, ms) {
    const timer = { tab, run, at: this.clock.ms + Math.max(0, ms) };
    this.timers.add(timer);
    return timer;
  }

  /** Let `ms` pass, with all that falls due. */
  async pass(ms) {
    const end = this.clock.ms + ms;
    for (;;) {
      await new Promise(setImmediate);
      let next;
      for (const timer of this.timers) if (!timer.tab?.frozen && timer.at <= end && !(next?.at <= timer.at)) next = timer;
      if (!next) break;
      this.timers.delete(next);
      this.clock.ms = Math.max(this.clock.ms, next.at);
      if (!next.tab?.dead) next.run();
    }
    this.clock.ms = end;
  }

  /** The machine sleeps: its tabs do nothing until it wakes, and what is under way to the server arrives. */
  async sleep(ms) {
    const awake = this.alive.filter(({ frozen }) => !frozen);
    for (const tab of awake) this.freeze(tab);
    await this.pass(ms);
    this.clock.sleptMs += ms;
    for (const tab of awake) this.wake(tab);
  }

  // --- tabs

  open(options) {
    const listeners = { storage: [], online: [], visibilitychange: [] };
    const tab = { listeners, hears: new Map(), pending: [], at: this.tabs.length };
    const listen = (type, run) => listeners[type]?.push(run);
    const model = this;
    const random = this.chance;
    const Clock = class extends Date {
      static now = () => START_MS + model.clock.ms + model.clock.setMs;
    };
    tab.storage = this.view(tab);
    const around = {
      navigator: { locks: this.locksOf(tab), get onLine() { return model.online; } },
      document: { hidden: false, addEventListener: listen },
      addEventListener: listen,
      setTimeout: (run, ms) => this.timer(tab, run, ms),
      clearTimeout: (timer) => void this.timers.delete(timer),
      fetch: (url, sent) => this.fetch(tab, new URL(url), sent),
      Date: Clock,
      performance: { now: () => model.clock.ms - model.clock.sleptMs },
      Math: Object.assign(Object.create(Math), { random: random.next, min: Math.min, max: Math.max, abs: Math.abs }),
      crypto: { getRandomValues: (bytes) => bytes.map(() => random.below(256)) },
      console: { warn: () => {} },
      localStorage: tab.storage,
    };
    if (model.clock.node) Object.assign(around, { document: undefined, process: { getBuiltinModule: () => ({ uptime: () => model.clock.ms / 1000 }) } });
    around.globalThis = around;
    tab.client = new (load(...GLOBALS.map((name) => around[name])))({ api: API, storage: tab.storage, ...options });
    tab.client.addEventListener("change", ({ detail: { entry, outcome } }) => outcome && tab.hears.set(entry.key, [...(tab.hears.get(entry.key) ?? []), outcome]));
    this.tabs.push(tab);
    return tab;
  }

  get alive() {
    return this.tabs.filter(({ dead }) => !dead);
  }

  close(tab) {
    tab.dead = true;
    for (const timer of this.timers) if (timer.tab === tab) this.timers.delete(timer);
    for (const queue of this.locks.values()) for (const waiting of queue.filter((one) => one.tab === tab)) this.leave(queue, waiting);
  }

  freeze(tab) {
    tab.frozen = true;
  }

  wake(tab) {
    tab.frozen = false;
    for (const go of tab.pending.splice(0)) go();
  }

  thaw(tab) {
    this.wake(tab);
    for (const run of tab.listeners.visibilitychange) run();
  }

  /** Give a tab what comes from outside, once it can take it. */
  reach(tab, go) {
    if (tab.frozen) tab.pending.push(go);
    else if (!tab.dead) go();
  }

  // --- locks

  locksOf(tab) {
    return {
      request: (name, { signal }, run) =>
        new Promise((done, fail) => {
          if (!this.locks.has(name)) this.locks.set(name, []);
          const queue = this.locks.get(name);
          const waiting = { tab, begin: () => Promise.resolve(run()).then(done, fail).finally(() => this.leave(queue, waiting)) };
          signal.addEventListener("abort", () => {
            if (waiting.has) return;
            this.leave(queue, waiting);
            fail(signal.reason);
          });
          queue.push(waiting);
          this.grant(queue);
        }),
    };
  }

  leave(queue, waiting) {
    const at = queue.indexOf(waiting);
    if (at >= 0) queue.splice(at, 1);
    this.grant(queue);
  }

  grant([first]) {
    if (!first || first.has) return;
    first.has = true;
    this.timer(null, () => this.reach(first.tab, first.begin), 0);
  }

  // --- storage

  view(tab) {
    const guard = (run) => (...given) => {
      if (tab.broken) throw new DOMException("denied", "SecurityError");
      return run(...given);
    };
    const view = {
      key: guard((at) => [...this.items.keys()][at] ?? null),
      getItem: guard((name) => this.items.get(name) ?? null),
      setItem: guard((name, value) => {
        if (this.full && String(value).length > (this.items.get(name)?.length ?? 0)) throw new DOMException("full", "QuotaExceededError");
        this.items.set(name, String(value));
        this.tell(tab, name, String(value));
      }),
      removeItem: guard((name) => this.items.delete(name) && this.tell(tab, name, null)),
    };
    return Object.defineProperty(view, "length", { get: guard(() => this.items.size) });
  }

  tell(from, key, newValue) {
    for (const tab of this.alive)
      if (tab !== from && !tab.frozen)
        this.timer(tab, () => tab.listeners.storage.forEach((run) => run({ key, newValue })), 0);
  }

  clear() {
    this.items.clear();
    this.tell(null, null, null);
  }

  // --- network

  fetch(tab, url, { method = "GET", body, headers = {}, signal }) {
    const fields = body ? JSON.parse(body) : {};
    const bearer = headers.authorization?.split(".")[1];
    const request = {
      tab, method, path: url.pathname, query: url.searchParams, key: fields.key ?? headers["idempotency-key"], amount: fields.amount,
      caller: bearer && JSON.parse(atob(bearer)).sub, secret: headers["tally-secret"], at: this.clock.ms,
    };
    this.requests.push(request);
    return new Promise((done, fail) => {
      signal.addEventListener("abort", () => fail(signal.reason));
      const lose = () => this.reach(tab, () => fail(new TypeError("fetch failed")));
      const say = ([status, said, more = {}]) => {
        const text = typeof said === "string" ? said : JSON.stringify(said);
        this.reach(tab, () => done({ status, headers: new Headers(more), text: async () => text }));
      };
      const { chance: random } = this;
      const soon = 1 + random.below(200);
      if (!random.often(this.faults)) return this.timer(null, () => say(this.server.answer(request)), soon);
      const kind = random.one(["lost", "lost", "unsent", "late", "hangs", "made up", "made up"]);
      if (kind === "unsent") return this.timer(null, lose, soon);
      if (kind === "made up") return this.timer(null, () => say(random.one(MADE_UP)), soon);
      // It arrives, whoever waits for it.
      this.server.late.add(request.key);
      this.timer(null, () => {
        this.server.late.delete(request.key);
        this.server.answer(request);
      }, kind === "late" ? random.below(LATE_MS_MAX) : 0);
      if (kind === "lost") this.timer(null, lose, soon);
    });
  }
}
