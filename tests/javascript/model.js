// A model of one browser with its own clock, network and random numbers. Tabs open, close, freeze, and lose their storage
// and sign-in. Requests get lost, delayed, refused, or answered by another server. A seed determines everything.

import { readFileSync } from "node:fs";

export const API = "https://api.example.com";
export const MINUTE_MS = 60e3;
export const HOUR_MS = 3600e3;
const RECEIPT_LIFE_MS = 24 * HOUR_MS;
const START_MS = Date.UTC(2026, 10, 23);
const DELAY_MS_MAX = 60e3;
const PROBLEM = "urn:problem-type:tally:";

// The globals that the client uses. Each tab has other values.
const GLOBALS = [
  "globalThis", "setTimeout", "clearTimeout", "fetch", "Date", "Math", "performance", "crypto", "console", "localStorage", "document",
];
const source = readFileSync(new URL("../../tally/javascript/tally.js", import.meta.url), "utf8");
// The client's source becomes the body of a function, whose parameters are the globals of a tab.
const loadClient = new Function(...GLOBALS, source.replaceAll("import.meta.url", "''").replace(/^export (?!class)/gm, "").replace("export class", "return class"));

/** Returns a generator of random numbers from a seed (mulberry32). `next`: from 0 to 1. `below`: a whole number.
 * `pick`: a member of a list. `often`: true for this share of the calls. */
export const chance = (seed) => {
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (limit) => Math.floor(next() * limit);
  return { next, below, pick: (list) => list[below(list.length)], often: (share) => next() < share };
};

/** Returns a token of a user. Each sign-in has a number, so that the tokens differ. */
export const token = (sub, signIn) => `e30.${btoa(JSON.stringify({ sub, signIn })).replace(/=/g, "")}.signature`;

/** Tally without faults. The id `closed` has reached its limit. `timesCounted`: how often each key was counted.
 * `likes`: whether a post is liked, by `liker post`. `delayed`: the keys of requests that have not arrived. */
class Server {
  timesCounted = new Map();
  likes = new Map();
  delayed = new Set();
  /** The keys whose receipt was asked for while their request was delayed. The outcome of such a change may be untrue. */
  askedWhileDelayed = new Set();
  /** The changes of likes that counted, in their order. */
  likeChanges = [];
  receipts = new Map();

  constructor(clock) {
    this.clock = clock;
  }

  answer(request) {
    const { path, query, caller } = request;
    const headers = { date: new Date(START_MS + this.clock.ms).toUTCString() };
    if (path === "/health") return [200, { receipts_live_s: { plays: RECEIPT_LIFE_MS / 1e3, hearts: RECEIPT_LIFE_MS / 1e3, usage: RECEIPT_LIFE_MS / 1e3 } }, headers];
    if (path.startsWith("/receipts")) return [200, { receipts: this.receiptsOf(query, path.endsWith("/own") ? caller : "") }, headers];
    const liker = request.secret ?? caller;
    if (path === "/anonymous") {
      const tallies = query.getAll("of").map((of) => of.split(":"));
      return [200, { anonymous: tallies.map(([counter, id]) => ({ counter, id, present: !!this.likes.get(`${liker} ${id}`) })) }, headers];
    }
    const [, , counter, id, resource] = path.split("/");
    const present = request.method === "PUT";
    if ((resource === "mine" || counter === "usage") && !caller) return [401, { message: "Unauthorized" }, headers];
    const operation = resource === "increments" ? "increment" : `${present ? "put" : "delete"}_${resource}`;
    const name = [operation, `${counter}/${id}`, caller ?? "", request.key].join();
    const receipt = this.receipts.get(name);
    if (receipt && receipt.until > this.clock.ms) {
      if (receipt.amount !== request.amount) return [422, { type: `${PROBLEM}key-reused`, detail: "It is another change." }, headers];
      return [200, receipt.body, { ...headers, "idempotency-replayed": "true" }];
    }
    if (id === "closed") return [409, { type: `${PROBLEM}limit-reached`, detail: "It does not go further." }, headers];
    const body = resource === "increments" ? { counter, id, counted: true } : { counter, id, present, changed: true };
    this.receipts.set(name, { amount: request.amount, body, until: this.clock.ms + RECEIPT_LIFE_MS });
    this.timesCounted.set(request.key, (this.timesCounted.get(request.key) ?? 0) + 1);
    if (resource !== "increments") this.likes.set(`${liker} ${id}`, present);
    if (resource !== "increments") this.likeChanges.push({ operation, id, key: request.key });
    return [200, body, headers];
  }

  receiptsOf(query, caller) {
    const targets = query.getAll("target");
    return query.getAll("key").map((key, index) => {
      const receipt = this.receipts.get([query.get("of"), targets[index], caller, key].join());
      if (this.delayed.has(key)) this.askedWhileDelayed.add(key);
      return receipt?.until > this.clock.ms ? { state: "counted", answer: receipt.body } : { state: "unknown" };
    });
  }
}

/** Answers that Tally does not give while it works: of a gateway or a captive portal, for example. */
const FALSE_ANSWERS = [
  [503, { type: `${PROBLEM}busy` }, { "retry-after": "7" }], [503, { message: "Service Unavailable" }], [429, { message: "Too many" }],
  [500, { message: "Internal Server Error" }], [504, null], [401, { message: "Unauthorized" }], [403, { message: "Forbidden" }],
  [404, { message: "Not Found" }], [400, "<h1>Bad request</h1>"], [200, "<h1>Sign in to the Wi-Fi</h1>"], [200, null], [200, []],
  [200, { counted: true, present: true }], [200, { counter: "plays", id: "other", counted: true }], [302, {}], [200, { receipts: [null] }],
  [200, { receipts: {} }], [200, { anonymous: [null] }], [400, { type: { toString: 1 } }], [503, null, { "retry-after": "soon" }],
];

export class Model {
  /** `ms`: the time since the start. `sleptMs`: how long the machine slept. `setMs`: by how much a person set the clock.
   * `node`: whether the client runs in Node, and not in a browser. */
  clock = { ms: 0, sleptMs: 0, setMs: 0, node: false };
  timers = new Set();
  storedItems = new Map();
  locks = new Map();
  tabs = [];
  requests = [];
  /** The share of the requests that meet a fault. */
  faultShare = 0;
  isOnline = true;
  isStorageFull = false;

  constructor(seed) {
    this.chance = chance(seed);
    this.server = new Server(this.clock);
  }

  // --- time

  /** Runs a function after `ms`; while its tab is frozen, the function waits. `tab`: null if the function is of no tab. */
  startTimer(tab, run, ms) {
    const timer = { tab, run, dueMs: this.clock.ms + Math.max(0, ms) };
    this.timers.add(timer);
    return timer;
  }

  /** Lets `ms` pass, and runs the timers that are due. */
  async pass(ms) {
    const end = this.clock.ms + ms;
    for (;;) {
      await new Promise(setImmediate);
      let next;
      for (const timer of this.timers) if (!timer.tab?.frozen && timer.dueMs <= end && !(next?.dueMs <= timer.dueMs)) next = timer;
      if (!next) break;
      this.timers.delete(next);
      this.clock.ms = Math.max(this.clock.ms, next.dueMs);
      if (!next.tab?.dead) next.run();
    }
    this.clock.ms = end;
  }

  /** Lets the machine sleep. The tabs do nothing until the machine wakes. Requests that were sent reach the server. */
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
    const tab = { listeners, outcomes: new Map(), pending: [] };
    const listen = (type, run) => listeners[type]?.push(run);
    const model = this;
    const random = this.chance;
    const Clock = class extends Date {
      static now = () => START_MS + model.clock.ms + model.clock.setMs;
    };
    tab.storage = this.storageOf(tab);
    const globals = {
      navigator: { locks: this.locksOf(tab), get onLine() { return model.isOnline; } },
      document: { hidden: false, addEventListener: listen },
      addEventListener: listen,
      setTimeout: (run, ms) => this.startTimer(tab, run, ms),
      clearTimeout: (timer) => void this.timers.delete(timer),
      fetch: (url, sent) => this.fetch(tab, new URL(url), sent),
      Date: Clock,
      performance: { now: () => model.clock.ms - model.clock.sleptMs },
      Math: Object.assign(Object.create(Math), { random: random.next }),
      crypto: { getRandomValues: (bytes) => bytes.map(() => random.below(256)) },
      console: { warn: () => {} },
      localStorage: tab.storage,
    };
    if (model.clock.node) Object.assign(globals, { document: undefined, process: { getBuiltinModule: () => ({ uptime: () => model.clock.ms / 1000 }) } });
    globals.globalThis = globals;
    tab.client = new (loadClient(...GLOBALS.map((name) => globals[name])))({ api: API, storage: tab.storage, ...options });
    tab.client.addEventListener("change", ({ detail: { entry, outcome } }) => outcome && tab.outcomes.set(entry.key, [...(tab.outcomes.get(entry.key) ?? []), outcome]));
    this.tabs.push(tab);
    return tab;
  }

  /** The tabs that are not closed. */
  get alive() {
    return this.tabs.filter(({ dead }) => !dead);
  }

  close(tab) {
    tab.dead = true;
    for (const timer of this.timers) if (timer.tab === tab) this.timers.delete(timer);
    for (const queue of this.locks.values()) for (const waiting of queue.filter((request) => request.tab === tab)) this.leave(queue, waiting);
  }

  freeze(tab) {
    tab.frozen = true;
  }

  /** Ends the freeze of a tab without an event, as when the machine wakes. */
  wake(tab) {
    tab.frozen = false;
    for (const run of tab.pending.splice(0)) run();
  }

  /** Shows a frozen tab, which gets the event `visibilitychange`. */
  thaw(tab) {
    this.wake(tab);
    for (const run of tab.listeners.visibilitychange) run();
  }

  /** Runs a callback of a tab. A frozen tab runs the callback when the tab wakes, and a closed tab never. */
  runIn(tab, run) {
    if (tab.frozen) tab.pending.push(run);
    else if (!tab.dead) run();
  }

  // --- locks

  locksOf(tab) {
    return {
      request: (name, { signal }, run) =>
        new Promise((resolve, reject) => {
          if (!this.locks.has(name)) this.locks.set(name, []);
          const queue = this.locks.get(name);
          const waiting = { tab, begin: () => Promise.resolve(run()).then(resolve, reject).finally(() => this.leave(queue, waiting)) };
          signal.addEventListener("abort", () => {
            if (waiting.isGranted) return;
            this.leave(queue, waiting);
            reject(signal.reason);
          });
          queue.push(waiting);
          this.grant(queue);
        }),
    };
  }

  /** Removes a tab's request from the queue of a lock, whether it has the lock or not. */
  leave(queue, waiting) {
    const index = queue.indexOf(waiting);
    if (index >= 0) queue.splice(index, 1);
    this.grant(queue);
  }

  /** Grants a lock to the first request in its queue. */
  grant([first]) {
    if (!first || first.isGranted) return;
    first.isGranted = true;
    this.startTimer(null, () => this.runIn(first.tab, first.begin), 0);
  }

  // --- storage

  /** Returns the storage as one tab sees it. Its writes are events in the other tabs. */
  storageOf(tab) {
    const guard = (run) => (...values) => {
      if (tab.isStorageDenied) throw new DOMException("denied", "SecurityError");
      return run(...values);
    };
    const view = {
      key: guard((index) => [...this.storedItems.keys()][index] ?? null),
      getItem: guard((name) => this.storedItems.get(name) ?? null),
      setItem: guard((name, value) => {
        if (this.isStorageFull && String(value).length > (this.storedItems.get(name)?.length ?? 0)) throw new DOMException("full", "QuotaExceededError");
        this.storedItems.set(name, String(value));
        this.notify(tab, name, String(value));
      }),
      removeItem: guard((name) => this.storedItems.delete(name) && this.notify(tab, name, null)),
    };
    return Object.defineProperty(view, "length", { get: guard(() => this.storedItems.size) });
  }

  notify(from, key, newValue) {
    for (const tab of this.alive)
      if (tab !== from && !tab.frozen)
        this.startTimer(tab, () => tab.listeners.storage.forEach((run) => run({ key, newValue })), 0);
  }

  /** Clears the storage. */
  clear() {
    this.storedItems.clear();
    this.notify(null, null, null);
  }

  // --- network

  fetch(tab, url, { method = "GET", body, headers = {}, signal }) {
    const fields = body ? JSON.parse(body) : {};
    const bearer = headers.authorization?.split(".")[1];
    const request = {
      tab, method, path: url.pathname, query: url.searchParams, key: fields.key ?? headers["idempotency-key"], amount: fields.amount,
      caller: bearer && JSON.parse(atob(bearer)).sub, secret: headers["tally-secret"], sentMs: this.clock.ms,
    };
    this.requests.push(request);
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      const failFetch = () => this.runIn(tab, () => reject(new TypeError("fetch failed")));
      const answer = ([status, body, answerHeaders = {}]) => {
        const text = typeof body === "string" ? body : JSON.stringify(body);
        this.runIn(tab, () => resolve({ status, headers: new Headers(answerHeaders), text: async () => text }));
      };
      const { chance: random } = this;
      const delayMs = 1 + random.below(200);
      if (!random.often(this.faultShare)) return this.startTimer(null, () => answer(this.server.answer(request)), delayMs);
      // What is listed twice happens twice as often.
      const fault = random.pick(["answer lost", "answer lost", "request lost", "delayed", "hangs", "false answer", "false answer"]);
      if (fault === "request lost") return this.startTimer(null, failFetch, delayMs);
      if (fault === "false answer") return this.startTimer(null, () => answer(random.pick(FALSE_ANSWERS)), delayMs);
      // The request arrives, although the page gets no answer.
      this.server.delayed.add(request.key);
      this.startTimer(null, () => {
        this.server.delayed.delete(request.key);
        this.server.answer(request);
      }, fault === "delayed" ? random.below(DELAY_MS_MAX) : 0);
      if (fault === "answer lost") this.startTimer(null, failFetch, delayMs);
    });
  }
}
