// The world of one test: a clock that only the test moves, a server that counts each key once as Tally does, a storage
// that tabs share, and locks. `faults` says how the server misbehaves: a list with the faults of the next requests, or a
// function that returns the fault of a request. Without a fault the server answers.

import { mock } from "node:test";
import { Tally } from "../../tally/javascript/tally.js";

export const API = "https://api.example.com";
export const HOUR_MS = 3600e3;
const STEPS_MAX = 2000;
const PROBLEM = "urn:problem-type:tally:";

export const json = (status, body, headers = {}) => new Response(JSON.stringify(body), { status, headers });
/** Returns the problem document with which Tally refuses a request. */
export const refusal = (status, slug, headers = {}) =>
  json(status, { type: PROBLEM + slug, title: slug, status, detail: `It is ${slug}.` }, headers);
/** A fault: the request never reaches the server. */
export const requestLost = () => Promise.reject(new TypeError("fetch failed"));
/** A fault: the server handles the request, and the answer never arrives. */
export const answerLost = (request, server) => (server.answer(request), requestLost());
/** A fault: the request stays open. */
export const neverAnswers = () => new Promise(() => {});

export const token = (sub) => `e30.${Buffer.from(JSON.stringify({ sub })).toString("base64url")}.signature`;

export class Server {
  requests = [];
  counts = new Map();
  receipts = new Map();
  likers = new Set(); // `counter/id/user` or `counter/id/secret`
  faults = [];
  receiptsLiveS = { plays: 24 * 3600, hearts: 24 * 3600 };
  aheadMs = 0; // how far the server's clock is ahead of the browser's clock

  fetch = async (url, { method = "GET", body, headers = {}, signal } = {}) => {
    signal?.throwIfAborted();
    const address = new URL(url);
    const caller = headers.authorization && JSON.parse(Buffer.from(headers.authorization.split(".")[1], "base64url")).sub;
    const fields = body ? JSON.parse(body) : {};
    const key = fields.key ?? headers["idempotency-key"];
    const secret = headers["tally-secret"];
    const request = { method, path: address.pathname, query: address.searchParams, key, caller, secret, headers, amount: fields.amount, signal };
    this.requests.push(request);
    const fault = typeof this.faults === "function" ? this.faults(request) : this.faults.shift();
    return fault ? fault(request, this) : this.answer(request);
  };

  // The requests that change a number.
  get sent() {
    return this.requests.filter(({ method }) => method !== "GET");
  }

  answer({ method, path, query, key, caller, secret, amount = 1 }) {
    const date = { date: new Date(Date.now() + this.aheadMs).toUTCString() };
    if (path === "/health") return json(200, { receipts_live_s: this.receiptsLiveS }, date);
    if (path.startsWith("/receipts")) {
      const user = path.endsWith("/own") ? caller : "";
      const targets = query.getAll("target");
      const receipts = query.getAll("key").map((receiptKey, at) => {
        const answer = this.receipts.get([query.get("of"), targets[at] ?? targets[0], user, receiptKey].join());
        return answer ? { state: "counted", answer } : { state: "unknown" };
      });
      return json(200, { receipts }, date);
    }
    if (path === "/anonymous") {
      const tallies = query.getAll("of").map((of) => of.split(":"));
      const likes = tallies.map(([counter, id]) => ({ counter, id, present: this.likers.has(`${counter}/${id}/${secret}`) }));
      return json(200, { anonymous: likes }, date);
    }
    const [, , counter, id, resource] = path.split("/");
    const present = method === "PUT";
    const operation = resource === "increments" ? "increment" : `${present ? "put" : "delete"}_${resource}`;
    const receipt = [operation, `${counter}/${id}`, resource === "mine" ? caller : "", key].join();
    const replay = this.receipts.get(receipt);
    if (replay) return json(200, replay, { ...date, "idempotency-replayed": "true" });
    const liker = `${counter}/${id}/${resource === "mine" ? caller : secret}`;
    if (resource === "increments") this.counts.set(id, (this.counts.get(id) ?? 0) + amount);
    else present ? this.likers.add(liker) : this.likers.delete(liker);
    this.receipts.set(receipt, resource === "increments" ? { counter, id, counted: true } : { counter, id, present, changed: true });
    return json(200, this.receipts.get(receipt), date);
  }
}

/** A storage that tabs share. `openView()` returns the view of one tab. The listeners of all other views get an event for
 * each write, as in a browser. */
export class SharedStorage {
  items = new Map();
  tabs = new Set();
  full = false;

  openView() {
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
        shared.notify(view, name, String(text));
      },
      removeItem: (name) => shared.items.delete(name) && shared.notify(view, name, null),
    };
    this.tabs.add(view);
    return view;
  }

  notify(from, key, newValue) {
    for (const view of this.tabs)
      if (view !== from) for (const listener of view.listeners) queueMicrotask(() => listener({ key, newValue }));
  }

  clear() {
    this.items.clear();
    this.notify(null, null, null);
  }

  /** The stored changes, without the other items of the client. */
  get entries() {
    const texts = [...this.items].filter(([name]) => name.startsWith("tally1 "));
    return texts.map(([, text]) => JSON.parse(text)).filter((entry) => entry.key);
  }
}

/** Makes the locks that the pages of one origin share. Pages get a lock in the order of their requests. */
export const locks = () => {
  const last = new Map();
  return {
    request: async (name, { signal }, run) => {
      const previous = last.get(name);
      const granted = new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
        (previous ?? Promise.resolve()).then(resolve);
      });
      const released = granted.then(run);
      // If a page aborts its request, the next request waits for the previous request.
      last.set(name, released.catch(() => previous));
      return released;
    },
  };
};

export class World {
  server = new Server();
  shared = new SharedStorage();
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

  openTab(options = {}) {
    const storage = this.shared.openView();
    // The new client adds its listener of the event `storage` to the window. Only this tab's view may call it.
    this.windowListeners.storage = storage.listeners;
    return new Tally({ api: API, storage, ...options });
  }

  /** Closes all tabs, and returns another world with the server and the stored items of this world. The closed tabs get no
   * event, no answer and no timer. */
  closeTabs() {
    const server = this.server;
    this.server = new Server();
    this.server.faults = () => neverAnswers;
    mock.timers.reset();
    mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
    const next = new World();
    return Object.assign(next, { server, shared: Object.assign(new SharedStorage(), { items: this.shared.items }) });
  }

  fireEvent(type) {
    this.windowListeners[type]?.forEach((listener) => listener({}));
  }

  /** Runs everything that is ready, and moves no clock. */
  async runPending() {
    for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
  }

  /** Moves the clock, by `stepMs` at a time, until the condition holds. */
  async until(condition, stepMs = 250) {
    for (let step = 0; step < STEPS_MAX; step++) {
      await this.runPending();
      if (await condition()) return;
      mock.timers.tick(stepMs);
    }
    throw new Error(`The condition did not hold within ${(STEPS_MAX * stepMs) / 1000} s of the test's clock.`);
  }

  /** Moves the clock until the promise settles, and returns its result. */
  async resultOf(promise, stepMs) {
    let result;
    promise.then((value) => (result = { value }), (error) => (result = { error }));
    await this.until(() => result, stepMs);
    if (result.error) throw result.error;
    return result.value;
  }

  /** Moves the clock by `ms`, and runs no timer. */
  moveClock(ms) {
    mock.timers.setTime(Date.now() + ms);
  }
}
