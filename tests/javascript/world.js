// A world of one test: a clock that only the test moves, a server that counts by keys as Tally does, storage that tabs
// share, and locks. What a request meets is `plan`: a function of the request, or a list for the first ones.

import { mock } from "node:test";
import { Tally } from "../../tally/javascript/tally.js";

export const API = "https://api.example.com";
export const HOUR_MS = 3600e3;
const STEPS_MAX = 2000;
const PROBLEM = "urn:problem-type:tally:";

export const json = (status, body, headers = {}) => new Response(JSON.stringify(body), { status, headers });
export const refusal = (status, slug, headers = {}) =>
  json(status, { type: PROBLEM + slug, title: slug, status, detail: `It is ${slug}.` }, headers);
/** The request never arrives; the work is done and the answer is lost. */
export const unsent = () => Promise.reject(new TypeError("fetch failed"));
export const lost = (request, server) => (server.answer(request), unsent());

export const token = (sub) => `e30.${Buffer.from(JSON.stringify({ sub })).toString("base64url")}.signature`;

export class Server {
  requests = [];
  counts = new Map();
  receipts = new Map();
  likers = new Set();
  plan = [];
  livesS = { plays: 24 * 3600, hearts: 24 * 3600 };
  aheadMs = 0;

  fetch = async (url, { method = "GET", body, headers = {}, signal } = {}) => {
    signal?.throwIfAborted();
    const at = new URL(url);
    const caller = headers.authorization && JSON.parse(Buffer.from(headers.authorization.split(".")[1], "base64url")).sub;
    const fields = body ? JSON.parse(body) : {};
    const key = fields.key ?? headers["idempotency-key"];
    const secret = headers["tally-secret"];
    const request = { method, path: at.pathname, query: at.searchParams, key, caller, secret, headers, amount: fields.amount, signal };
    this.requests.push(request);
    const fault = typeof this.plan === "function" ? this.plan(request) : this.plan.shift();
    return fault ? fault(request, this) : this.answer(request);
  };

  get sent() {
    return this.requests.filter(({ method }) => method !== "GET");
  }

  answer({ method, path, query, key, caller, secret, amount = 1 }) {
    const date = { date: new Date(Date.now() + this.aheadMs).toUTCString() };
    if (path === "/health") return json(200, { receipts_live_s: this.livesS }, date);
    if (path.startsWith("/receipts")) {
      const who = path.endsWith("/own") ? caller : "";
      const targets = query.getAll("target");
      const receipts = query.getAll("key").map((one, at) => {
        const found = this.receipts.get([query.get("of"), targets[at] ?? targets[0], who, one].join());
        return found ? { state: "counted", answer: found } : { state: "unknown" };
      });
      return json(200, { receipts }, date);
    }
    if (path === "/anonymous") {
      const asked = query.getAll("of").map((one) => one.split(":"));
      const own = asked.map(([counter, id]) => ({ counter, id, present: this.likers.has(`${counter}/${id}/${secret}`) }));
      return json(200, { anonymous: own }, date);
    }
    const [, , counter, id, what] = path.split("/");
    const present = method === "PUT";
    const of = what === "increments" ? "increment" : `${present ? "put" : "delete"}_${what}`;
    const name = [of, `${counter}/${id}`, what === "mine" ? caller : "", key].join();
    const replay = this.receipts.get(name);
    if (replay) return json(200, replay, { ...date, "idempotency-replayed": "true" });
    const likers = `${counter}/${id}/${what === "mine" ? caller : secret}`;
    if (what === "increments") this.counts.set(id, (this.counts.get(id) ?? 0) + amount);
    else present ? this.likers.add(likers) : this.likers.delete(likers);
    this.receipts.set(name, what === "increments" ? { counter, id, counted: true } : { counter, id, present, changed: true });
    return json(200, this.receipts.get(name), date);
  }
}

/** A storage that tabs share. `tab()` is one tab's view: others hear of its changes, as browsers have it. */
export class Shared {
  items = new Map();
  tabs = new Set();
  full = false;

  tab() {
    const shared = this;
    const view = {
      listeners: [],
      get length() {
        return shared.items.size;
      },
      key: (at) => [...shared.items.keys()][at] ?? null,
      getItem: (name) => shared.items.get(name) ?? null,
      setItem: (name, text) => {
        if (shared.full) throw new DOMException("full", "QuotaExceededError");
        shared.items.set(name, String(text));
        shared.tell(view, name, String(text));
      },
      removeItem: (name) => shared.items.delete(name) && shared.tell(view, name, null),
    };
    this.tabs.add(view);
    return view;
  }

  tell(from, key, newValue) {
    for (const view of this.tabs)
      if (view !== from) for (const listener of view.listeners) queueMicrotask(() => listener({ key, newValue }));
  }

  clear() {
    this.items.clear();
    this.tell(null, null, null);
  }

  get entries() {
    const kept = [...this.items].filter(([name]) => name.startsWith("tally1 "));
    return kept.map(([, text]) => JSON.parse(text)).filter((entry) => entry.key);
  }
}

/** Locks that pages of one origin share, in the order in which they are asked for. */
export const locks = () => {
  const last = new Map();
  return {
    request: async (name, { signal }, run) => {
      const before = last.get(name);
      const got = new Promise((done, fail) => {
        signal.addEventListener("abort", () => fail(signal.reason));
        (before ?? Promise.resolve()).then(done);
      });
      // Who gives up leaves the queue: those behind wait for those before.
      const held = got.then(run);
      last.set(name, held.catch(() => before));
      return held;
    },
  };
};

export class World {
  server = new Server();
  shared = new Shared();
  users = {};
  navigator = { onLine: true, locks: locks() };
  windowListeners = {};

  constructor() {
    mock.timers.reset();
    mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.UTC(2026, 10, 23) });
    globalThis.fetch = (...request) => this.server.fetch(...request);
    Object.defineProperty(globalThis, "navigator", { value: this.navigator, configurable: true });
    globalThis.addEventListener = (type, listener) => (this.windowListeners[type] ??= []).push(listener);
    globalThis.document = { hidden: false, addEventListener: globalThis.addEventListener };
  }

  /** A new page. A closed one stays silent: its listeners are gone with it, and its timers are no more. */
  tab(options = {}) {
    const storage = this.shared.tab();
    this.windowListeners.storage = storage.listeners;
    return new Tally({ api: API, storage, ...options });
  }

  /** All pages are closed: what they had in memory is gone. Answers that are under way reach nobody. */
  close() {
    const server = this.server;
    this.server = new Server();
    this.server.plan = () => () => new Promise(() => {});
    mock.timers.reset();
    mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
    const next = new World();
    return Object.assign(next, { server, shared: Object.assign(new Shared(), { items: this.shared.items }) });
  }

  fire(type) {
    this.windowListeners[type]?.forEach((listener) => listener({}));
  }

  /** Let everything happen that needs no time. */
  async now() {
    for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
  }

  /** Let time pass until the condition holds. */
  async until(condition, stepMs = 250) {
    for (let step = 0; step < STEPS_MAX; step++) {
      await this.now();
      if (await condition()) return;
      mock.timers.tick(stepMs);
    }
    throw new Error(`not within ${(STEPS_MAX * stepMs) / 1000} s of the test's clock`);
  }

  /** The result of a promise that needs time. */
  async got(promise, stepMs) {
    let result;
    promise.then((value) => (result = { value }), (error) => (result = { error }));
    await this.until(() => result, stepMs);
    if (result.error) throw result.error;
    return result.value;
  }

  /** Set the clock: `ms` later, without a timer. */
  later(ms) {
    mock.timers.setTime(Date.now() + ms);
  }
}
