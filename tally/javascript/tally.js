// Counts each change exactly once, from the button to the number. tally.d.ts describes the calls, docs/browser.md the
// guarantees. Comments have lines of their own, because the API serves this file without comment lines.

// How long the client waits for an answer or a token: longer than API Gateway, which answers within 30 s.
const TIMEOUT_MS = 35e3;
// If the lock of #withLock is not granted in this time, the client sends this batch and LOCKLESS_BATCHES more without a
// lock, because a page in the background may hold the lock for ever.
const LOCK_MS = 5e3;
const LOCKLESS_BATCHES = 20;
// The longest pause between retries. If the server's retry-after is longer, the longest pause is RETRY_AFTER_MS_MAX.
const PAUSE_MS_MAX = 30e3;
const RETRY_AFTER_MS_MAX = 300e3;
// The first and the longest time between two checks whether a user has signed in.
const CHECK_MS = 30e3;
const CHECK_MS_MAX = 3600e3;
// A lane sends up to so many changes at the same time (a batch), each in a request of its own.
const BATCH_CHANGES_MAX = 4;
// A read asks for up to 100 tallies or receipts. The API takes 10 KB of address and headers, with 4 KB of token.
const QUERIES_MAX = 100;
const QUERY_BYTES_MAX = 6000;
// If a change was first sent more than this time ago, the client asks for its receipt before it sends the change again.
const ASK_AFTER_MS = 3600e3;
// Requests take time and clocks may be set, so the client does not resend a change in its receipt's last hour.
const MARGIN_MS = 3600e3;
// The server's Date has whole seconds. So a change may seem to be sent in the future, but not by more than this time.
const FUTURE_MS = 60e3;
// A machine sleeps for at most this time. If its clock went forward by more, somebody set the clock.
const SLEEP_MS_MAX = 365 * 86400e3;
// `make generate` writes this line from the server's patterns.
const PATTERNS = { counter: /^(?=.{1,255}$)[a-z][a-z0-9_-]{0,31}$/, id: /^(?=.{1,256}$)(\.{3,}|\.*[A-Za-z0-9_:~@-][A-Za-z0-9._:~@-]*)$/, key: /^(?=.{1,255}$)[!#-+\--~][!-+\--~]*$/, anonymousKey: /^(?=.{22,255}$)[!#-+\--~][!-+\--~]*$/, amountMax: 1000000000000000 };

const PROBLEM = "urn:problem-type:tally:";
const UNANSWERED = "unanswered";
const DENIED = "denied";
const FORGET_NOTE = "forgets";
const NO_ANSWER = { status: 0 };
const KEY_REUSED = {
  state: "refused",
  answer: { type: `${PROBLEM}key-reused`, title: "Key reused", status: 422, detail: "This key was used for another change." },
};

// Listeners by storage. The event `storage` reaches only other pages, so a client calls its own page's listeners.
const LISTENERS = (globalThis[Symbol.for("tally")] ??= new WeakMap());

// Node's monotonic clock runs while the machine sleeps. The monotonic clock of a browser may stop.
const nodeOs = () => !globalThis.document && globalThis.process?.getBuiltinModule?.("os");
const monotonicMs = () => (nodeOs() ? nodeOs().uptime() * 1000 : performance.now());

const pauseMs = (fails) => Math.min(PAUSE_MS_MAX, 500 * 2 ** fails) * (0.5 + Math.random() / 2);
// Returns for how many ms, at least, a busy server asks the client to pause.
const retryAfterMs = ({ headers }) => Math.min(RETRY_AFTER_MS_MAX, 1000 * headers?.get("retry-after") || 0);
const newKey = () => crypto.getRandomValues(new Uint8Array(16)).join("-");
// A like is put or deleted: `present` is true or false. Other changes are increments.
const isLike = ({ present }) => present != null;
const isAnonymousLike = ({ present, user }) => present != null && !user;
const operation = ({ present, user }) =>
  present == null ? "increment" : `${present ? "put" : "delete"}_${user ? "mine" : "anonymous"}`;
const query = (fields) => new URLSearchParams(fields).toString();
const orUndefined = (read) => {
  try {
    return read();
  } catch {}
};
// A whole number beyond 2^53 becomes a BigInt. JSON.parse and the storage get a string of NUL and the digits instead.
const JSON_TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*/gi;
const markBigInt = (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(+token) ? `"\\u0000${token}"` : token);
export const fromJson = (text) =>
  JSON.parse(/\d{16}/.test(text) ? text.replace(JSON_TOKENS, markBigInt) : text, (_, value) =>
    typeof value === "string" && /^\0-?\d+$/.test(value) ? BigInt(value.slice(1)) : value,
  );
const toJson = (value) => JSON.stringify(value, (_, member) => (typeof member === "bigint" ? `\0${member}` : member));
const parsed = (text) => orUndefined(() => fromJson(text));

// Returns a whole number as text, because databases give ids as numbers and BigInts. Returns other values unchanged.
const textOf = (value) => (typeof value === "bigint" || Number.isSafeInteger(value) ? String(value) : value);
const checked = (kind, value, pattern) => {
  const text = textOf(value);
  if (typeof text === "string" && pattern.test(text)) return text;
  throw new TypeError(`tally: ${String(value)} is not a valid ${kind}`);
};
// Returns the id of a path, an address or any text, as `id_of` in tally/ids.py does: `/posts/x/` becomes
// `~2Fposts~2Fx~2F`. An id stays as it is, and so does text that can never be an id, which `checked` refuses. ENCODED:
// what a browser writes in an address for characters beyond ASCII, a space and "<>^`{}.
const ENCODED = /(%([89a-f][\da-f]|2[02]|3[ce]|5e|60|7[bd]))+/gi;
export const idOf = (name) => {
  const text = textOf(name);
  if (typeof text !== "string" || /[\0-\x1f\x7f#]|^[\w.:~@-]*$|\p{Cs}/u.test(text)) return text;
  const plain = text.replace(ENCODED, (run) => orUndefined(() => decodeURIComponent(run)) ?? run).normalize("NFC");
  const code = (sign) => `~${sign.charCodeAt().toString(16).toUpperCase()}`;
  return encodeURIComponent(plain).replace(/[!'()*~]/g, code).replace(/%3A/g, ":").replace(/%40/g, "@").replaceAll("%", "~");
};
// The ids of these counters are addresses of pages. Tally normalises them, so the client sends an address unchanged.
export const isOfPages = (counter) => /^((bot_)?visits|page_visitors)$/.test(counter);
// Returns `counter:id` for `counter:text`.
export const tallyOf = (name) => {
  const [counter, id] = String(name).split(/:(.*)/s);
  return id === undefined || isOfPages(counter) ? name : `${counter}:${idOf(id)}`;
};
const checkedAmount = (value) => {
  const amount = typeof value === "bigint" ? Number(value) : value;
  if (amount === undefined || (Number.isInteger(amount) && Math.abs(amount) <= PATTERNS.amountMax)) return amount;
  throw new TypeError(`tally: ${String(value)} is not a valid amount`);
};

const subject = (token) => {
  const bytes = atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"));
  return textOf(JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)))).sub);
};

const withTimeout = (promise) => {
  let timer;
  const timeout = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error("tally: no answer in time")), TIMEOUT_MS)));
  return Promise.race([promise, timeout]).finally(() => clearTimeout(timer));
};

// Returns the kind of an answer. "answer": a success, perhaps of a captive portal. "failed": 500. "busy": Tally did not
// answer, or asks to try later. "refusal": Tally refuses the request. DENIED: a 401, or a firewall's refusal.
const kindOf = ({ status, body }) => {
  if (status < 300 && body instanceof Object) return "answer";
  if (status === 500) return "failed";
  if (status < 400 || status > 500 || [408, 425, 429].includes(status)) return "busy";
  // `String` would throw for some values that other servers send.
  return status !== 401 && JSON.stringify(body?.type)?.startsWith(`"${PROBLEM}`) ? "refusal" : DENIED;
};

// Returns what a read says of `name`, a `counter:id`, if no server answered with its number or like.
const unreadable = (name, { message }) => {
  const [counter] = name.split(":", 1);
  const error = { type: "about:blank", title: "Not read", status: 0, detail: message };
  return { counter, id: name.slice(counter.length + 1), error };
};

// Splits a list of query texts into parts. Each part fits into the address of one request.
const intoParts = (queries) => {
  const parts = [];
  let bytes = Infinity;
  for (const text of queries) {
    bytes += text.length + 1;
    if (bytes > QUERY_BYTES_MAX || parts.at(-1).length === QUERIES_MAX) {
      parts.push([]);
      bytes = text.length;
    }
    parts.at(-1).push(text);
  }
  return parts;
};

export class Tally extends EventTarget {
  // The changes that this page knows, by the name of their item. `entry`: the change, which its item has as JSON: an
  // `Entry` of tally.d.ts with `timed` (see #ageMs), and with `outcome` from the change's end until the item's removal.
  // The rest is in the memory only. `stored`: there is an item. `isLost`: the item was lost, and is not stored again.
  // `isUnreadable`: the item cannot be read. `promise`, `done`: what callers of this page wait for, and its resolve
  // function. `why`, `status`: as in tally.d.ts. `token`: the denied token. `fails`: attempts that did not settle the
  // change. `timer`: the change pauses. `busy`: a request is open. `began`: when this page first sent the change, by
  // two clocks. `asksAlone`: the client asks for this receipt alone. `outcome`: how the change ended.
  #states = new Map();
  // Two queues, because anonymous changes wait for no user and no token. A lane sends its `ready` changes before it
  // looks for other changes. `paused`, `why`: the timer and the reason of a pause. `fails`: pauses since the last
  // success. `slow`: open batches that are older than LOCK_MS. `user`: who is signed in. `checks`: how often the client
  // looked for a sign-in. `fresh`: asks for a fresh token. `reached`: /health answered a browser that seemed offline.
  // `running`: #run has not ended. `runAgain`: there may be more to send since its last turn began.
  #anonymousLane = { ready: [], fails: 0, slow: 0 };
  #userLane = { ready: [], fails: 0, slow: 0, checks: 0 };
  #locklessBatches = 0;
  #isAdopting = false;
  #adoptTimer;
  #isClockKnown = false;
  #listener = (event) => this.#onStorage(event);
  #warned = new Set();

  // `api` is not `new URL(…, import.meta.url)`, because a bundler would take that for a file to copy.
  constructor({ api = import.meta.url.replace(/[^/]*\/[^/]*$/, ""), user = () => {}, token = () => {}, storage } = {}) {
    super();
    if (!/^https?:/.test(api)) throw new TypeError(`tally: api must be an address, not ${api}`);
    this.api = api.replace(/\/+$/, "");
    // If `user` throws or returns a promise, no user is signed in. An uncaught rejection would end a Node process.
    this.user = () =>
      orUndefined(() => {
        const sub = user();
        Promise.resolve(sub).catch(() => {});
        return sub && typeof textOf(sub) === "string" ? textOf(sub) : undefined;
      });
    this.token = token;
    // The names of stored changes begin with `prefix`. The item `prefix` itself has `aheadMs`.
    this.prefix = `tally1 ${this.api} `;
    // The name of the item with this browser's secret. The names of notes begin with `secretName`. A like's note,
    // `counter id`, has the time of an anonymous like. FORGET_NOTE is there while `forget()` deletes these likes.
    this.secretName = `tally1-own ${this.api} `;
    this.storage = storage ?? orUndefined(() => document && localStorage);
    // How far the server's clock is ahead of this machine's clock; 0 until an answer says this (#isClockKnown).
    this.aheadMs = 0;
    if (this.storage) LISTENERS.set(this.storage, [...(LISTENERS.get(this.storage) ?? []), this.#listener]);
    globalThis.addEventListener?.("storage", this.#listener);
    globalThis.addEventListener?.("online", () => this.retry());
    // The event also comes when a prerendered page or a page of the back/forward cache is shown. A hidden page does not
    // ask for the lock, because the browser would keep the page alive after the visitor has left.
    globalThis.document?.addEventListener("visibilitychange", () => document.hidden || this.#wake());
    this.#wake();
  }

  // An elements.js of another version calls this, too.
  of(counter, id) {
    return tallyOf(`${counter}:${textOf(id) ?? ""}`);
  }

  increment(counter, id, { amount, key, signed } = {}) {
    const user = signed ? this.#requireUser() : undefined;
    const checkedKey = key === undefined ? newKey() : checked("key", key, user ? PATTERNS.key : PATTERNS.anonymousKey);
    return this.#add({ counter, id, amount: checkedAmount(amount), user, key: checkedKey });
  }

  like(counter, id, present = true, { anonymous } = {}) {
    // A sign-in does not help if the counter or the id is malformed, so the client checks these first.
    checked("counter or id", counter, PATTERNS.counter);
    checked("counter or id", idOf(id), PATTERNS.id);
    const asBrowser = anonymous && !this.user();
    if (asBrowser && !this.#secret(true)) throw new Error("tally: nobody is signed in, and this browser stores nothing for this site");
    const user = asBrowser ? undefined : this.#requireUser();
    return this.#add({ counter, id, present: !!present, user, key: newKey() });
  }

  values(names, { fresh = false } = {}) {
    return this.#read("/tallies", names, "tallies", fresh ? { cache: "reload" } : {});
  }

  async mine(names) {
    if (!this.user() && this.#secret()) return this.#readAnonymous(names);
    const user = this.#requireUser();
    this.#adopt();
    return this.#read("/mine", names, "mine", this.#authorization(await this.#tokenOf(user)));
  }

  waiting() {
    const entries = new Map();
    for (const name of this.#changeNames()) entries.set(name, this.#load(name));
    for (const [name, { entry, stored, promise, outcome }] of this.#states)
      if (outcome) entries.delete(name);
      // Only this page has the change: it could not be stored, or its item was removed or cannot be read.
      else if (!stored || (promise && !entries.get(name))) entries.set(name, entry);
    return [...entries.values()]
      .filter((entry) => entry && !entry.outcome)
      .map((entry) => this.#describe(entry))
      .sort((one, other) => one.at - other.at);
  }

  retry() {
    for (const state of this.#states.values()) if (state.why === DENIED) this.#release(state);
    this.#wake();
  }

  forget(...users) {
    this.#loadStates();
    if (!users.length && this.#secret()) this.#writeNote(FORGET_NOTE, 1);
    if (!users.length) return this.#deleteAnonymous();
    const [user] = users;
    for (const state of this.#states.values())
      if (state.entry.user && state.entry.user === textOf(user)) this.#settle(state, { state: "forgotten" });
  }

  #requireUser() {
    const user = this.user();
    if (!user) throw new Error("tally: nobody is signed in");
    return (this.#userLane.user = checked("user", user, /^\P{Cs}*$/u));
  }

  // Returns this browser's secret; null: none; undefined: unreadable. `make`: makes one if needed, and ends `forget()`.
  #secret(make) {
    return orUndefined(() => {
      const kept = () => this.storage.getItem(this.secretName);
      const isKept = () => PATTERNS.anonymousKey.test(kept());
      if (make && !isKept()) this.storage.setItem(this.secretName, newKey());
      if (make) this.storage.removeItem(this.secretName + FORGET_NOTE);
      return isKept() ? kept() : null;
    });
  }

  #readNote(name) {
    return orUndefined(() => this.storage.getItem(this.secretName + name));
  }

  // Returns when this browser made a like; 0: this browser has no such like, or the stored time is not a number.
  #likedAt(note) {
    const at = Number(this.#readNote(note));
    return Number.isFinite(at) ? at : 0;
  }

  // Stores a note. Without `value`, deletes it.
  #writeNote(name, value) {
    orUndefined(() => (value ? this.storage.setItem(this.secretName + name, value) : this.storage.removeItem(this.secretName + name)));
  }

  // Returns [counter, id] of each anonymous like that the storage has.
  #storedLikes() {
    const pairs = this.#itemNames(this.secretName).map((name) => name.slice(this.secretName.length).split(" "));
    return pairs.filter(([counter, id]) => id && PATTERNS.counter.test(counter) && PATTERNS.id.test(id));
  }

  #readAnonymous(names) {
    return this.#read("/anonymous", names, "anonymous", { headers: { "tally-secret": this.#secret() } });
  }

  // For each like of the browser, puts a like of the user who signed in. When the user's like has counted, #updateNote
  // deletes the browser's like. So the number is never one too low. If the page closes, the next page continues.
  async #adopt() {
    const liked = this.#storedLikes();
    if (this.#isAdopting || !liked.length || !this.#secret() || !this.user() || this.#readNote(FORGET_NOTE)) return;
    this.#isAdopting = true;
    const timesBefore = new Map(liked.map((pair) => [pair.join(" "), this.#readNote(pair.join(" "))]));
    const likes = await this.#readAnonymous(liked.map((pair) => pair.join(":"))).catch(() => []);
    this.#isAdopting = false;
    const user = this.user();
    const waits = new Set(this.waiting().filter(isLike).map(({ counter, id }) => `${counter} ${id}`));
    let mustRetry = !likes.length;
    for (const { counter, id, present } of likes) {
      const note = `${counter} ${id}`;
      const time = this.#readNote(note);
      // A change that waits is newer than the answer, and so is a note that was written during the read.
      if (waits.has(note)) continue;
      if (!time || time !== timesBefore.get(note) || present == null) mustRetry = true;
      else if (!present) this.#writeNote(note);
      else if (user) this.#add({ counter, id, present, user, key: newKey() });
    }
    clearTimeout(this.#adoptTimer);
    if (mustRetry) this.#adoptTimer = setTimeout(() => this.#adopt(), PAUSE_MS_MAX);
  }

  // Deletes the anonymous likes of this browser. If the browser has no like, deletes the secret (the note "").
  #deleteAnonymous() {
    const likes = new Map(this.#storedLikes().map(([counter, id]) => [`${counter} ${id}`, true]));
    const waits = [...this.#states.values()].filter(({ entry, outcome }) => !outcome && isAnonymousLike(entry));
    waits.sort((one, other) => one.entry.at - other.entry.at);
    for (const { entry } of waits) likes.set(`${entry.counter} ${entry.id}`, entry.present);
    if (!likes.size) for (const name of ["", FORGET_NOTE]) this.#writeNote(name);
    const pairs = [...likes].filter(([, present]) => present).map(([note]) => note.split(" "));
    return Promise.all(pairs.map(([counter, id]) => this.#add({ counter, id, present: false, key: newKey() })));
  }

  // Updates a like's note after a change of the browser's like, or of the user's like, has ended. If the user's change
  // was refused, deletes the note, so that #adopt does not repeat the change.
  #updateNote({ user, counter, id, present, at }, { state }) {
    const note = `${counter} ${id}`;
    const counted = state === "counted";
    // A frozen page receives an outcome late, so the note may be of a later change.
    if (user ? !this.#readNote(note) : this.#likedAt(note) > at) return;
    if (user && counted) this.#add({ counter, id, present: false, key: newKey() });
    else if (user || !present) (counted || state === "refused") && this.#writeNote(note);
    else if (counted || state === "doubt") this.#writeNote(note, at);
  }

  #add(change) {
    const counter = checked("counter or id", change.counter, PATTERNS.counter);
    const id = checked("counter or id", idOf(change.id), PATTERNS.id);
    const entry = { ...change, counter, id, at: this.#now(), sent: 0, tries: 0 };
    const name = this.#name(entry);
    if (isLike(entry)) entry.at = Math.max(entry.at, this.#lastAt(entry) + 1, 1 + this.#likedAt(`${counter} ${id}`));
    // If a change with the same key waits, the caller gets the outcome of the waiting change.
    const waiting = this.#states.get(name) ?? this.#track(name, this.#load(name));
    const state = waiting ?? { name, entry };
    if (state.outcome) return Promise.resolve(state.outcome);
    state.promise ??= new Promise((done) => (state.done = done));
    if (state.why === DENIED) state.done({ state: DENIED, status: state.status });
    const { amount } = state.entry;
    if (amount !== entry.amount) {
      if (amount !== undefined && entry.amount !== undefined) return Promise.resolve(KEY_REUSED);
      // Without an amount, a change has the counter's own step, which only Tally knows. So the client sends this change
      // after the waiting change, and Tally compares the amounts.
      return state.promise.then((outcome) => (outcome.state === DENIED ? outcome : this.#add(change)));
    }
    if (!waiting) {
      this.#states.set(name, state);
      this.#store(state);
      this.#report(state);
    }
    this.#run(this.#lane(entry));
    return state.promise;
  }

  // Returns when a like's last waiting change was made, or 0. A new change is later, even if the clock was set back.
  #lastAt(entry) {
    const ofLike = this.#name({ ...entry, key: "" });
    const names = [...this.#changeNames(), ...this.#states.keys()].filter((name) => name.startsWith(ofLike));
    return Math.max(0, ...names.map((name) => (this.#states.get(name)?.entry ?? this.#load(name))?.at ?? 0));
  }

  #name({ user = "", counter, id, key }) {
    return this.prefix + [encodeURIComponent(user), counter, id, key].join(" ");
  }

  #lane({ user }) {
    return user ? this.#userLane : this.#anonymousLane;
  }

  #now() {
    return Date.now() + this.aheadMs;
  }

  #setItem(name, value) {
    this.storage.setItem(name, value);
    for (const listener of LISTENERS.get(this.storage))
      if (listener !== this.#listener) queueMicrotask(() => listener({ key: name, newValue: value }));
    return true;
  }

  // Writes the item of a change, or keeps the change in the page's memory. Returns false if an outdated item stays. The
  // client then does not send the change, because other tabs would not know of the attempt. A lost change gets no new
  // item: if another tab has settled the change, a later page would find the item, and send the change again.
  #store(state) {
    const { name, entry, promise } = state;
    const write = () => !!orUndefined(() => this.#setItem(name, toJson(entry)));
    if (state.isLost) return true;
    if (write()) return (state.stored = true);
    if (!state.stored) return true;
    // The storage is full, and has the item's earlier version. If a caller waits on this page, the memory is enough.
    if (!promise || !orUndefined(() => (this.storage.removeItem(name), true))) return false;
    state.stored = write();
    return true;
  }

  #itemNames(prefix) {
    const keys = [];
    for (let at = orUndefined(() => this.storage.length) || 0; at--; ) keys.push(orUndefined(() => this.storage.key(at)));
    return keys.filter((name) => name?.startsWith(prefix));
  }

  #changeNames() {
    const names = new Set(this.#itemNames(this.prefix));
    if (names.delete(this.prefix) && !this.#isClockKnown) this.#setClock(orUndefined(() => this.storage.getItem(this.prefix)));
    return names;
  }

  // Returns an entry; null: there is no entry; undefined: the entry cannot be read, or another program wrote the item.
  #load(name) {
    return orUndefined(() => {
      const text = this.storage.getItem(name);
      return text == null ? null : this.#parseEntry(name, text);
    });
  }

  #parseEntry(name, value) {
    const entry = parsed(value);
    const parts = name.slice(this.prefix.length).split(" ");
    const [user, counter, id, key] = parts;
    if (parts.length !== 4 || !PATTERNS.counter.test(counter) || !PATTERNS.id.test(id) || !PATTERNS.key.test(key)) return;
    if (![entry?.at, entry?.sent, entry?.tries].every(Number.isFinite)) return;
    if (isLike(entry) && typeof entry.present !== "boolean") return;
    return { ...entry, user: orUndefined(() => decodeURIComponent(user)) || undefined, counter, id, key };
  }

  // Makes or updates the state of a stored entry, and returns the state; undefined without an entry.
  #track(name, entry) {
    if (!entry) return;
    const state = this.#states.get(name) ?? { name, stored: true };
    state.entry = entry;
    this.#states.set(name, state);
    // Another tab settled the change and wrote the outcome. That tab removes the item next, or has closed.
    if (entry.outcome) this.#settle(state, entry.outcome);
    return state;
  }

  // Takes over the stored changes that other pages left, and drops changes that others removed and no caller waits for.
  #loadStates() {
    const names = this.#changeNames();
    for (const [name, { promise, stored }] of this.#states)
      if (!promise && stored && !names.has(name)) this.#states.delete(name);
    for (const name of names) this.#states.has(name) || this.#track(name, this.#load(name));
  }

  // Takes `aheadMs` from the storage, where the tab that got an answer stored it.
  #setClock(value) {
    const aheadMs = parsed(value ?? "");
    if (!Number.isFinite(aheadMs)) return;
    this.#isClockKnown = true;
    this.aheadMs = aheadMs;
  }

  // Handles another client's write. `key` is null if the storage was cleared, `newValue` null if an item was removed.
  #onStorage({ key, newValue }) {
    if (!key) return this.#wake();
    if (key === this.prefix) return this.#setClock(newValue);
    if (!key.startsWith(this.prefix)) return;
    const state = this.#states.get(key);
    const entry = newValue && this.#parseEntry(key, newValue);
    // The item was removed. If a caller of this page waits, the next turn looks for the outcome.
    if (!entry) return state?.promise ? this.#run(this.#lane(state.entry)) : this.#states.delete(key);
    if (entry.outcome) return state && this.#track(key, entry);
    // Ignores a change that has ended: the event is late, or another tab sends the change once more. Also ignores an
    // unknown change that another tab has sent or removed, because the other tab handles it.
    if (state ? state.outcome : entry.sent || !this.#load(key)) return;
    this.#report(this.#track(key, entry));
    if (!entry.sent) this.#run(this.#lane(entry));
  }

  #describe(entry) {
    const { why, status } = this.#states.get(this.#name(entry)) ?? {};
    const lane = this.#lane(entry);
    return { ...entry, why: why ?? (entry.user === lane.user ? lane.why : "signed-out"), status };
  }

  #report({ entry, outcome }) {
    this.dispatchEvent(new CustomEvent("change", { detail: { entry: outcome ? entry : this.#describe(entry), outcome } }));
  }

  #settle(state, outcome) {
    if (state.outcome) return;
    state.outcome = outcome;
    clearTimeout(state.timer);
    const { name, entry, stored } = state;
    if (isLike(entry) && !entry.outcome) this.#updateNote(entry, outcome);
    // Tells other tabs the outcome, because the event of a removal has none. If another tab told it, `entry` has it.
    if (stored && !entry.outcome) orUndefined(() => this.#setItem(name, toJson({ ...entry, outcome })));
    // If the item cannot be removed, its state stays, so this page does not send the change again.
    if (!stored || orUndefined(() => (this.storage.removeItem(name), true))) this.#states.delete(name);
    state.done?.(outcome);
    this.#report(state);
    if (!isAnonymousLike(entry)) return;
    if (entry.present) this.#adopt();
    else if (this.#readNote(FORGET_NOTE) && !this.#storedLikes().length) this.#deleteAnonymous();
  }

  #wake() {
    for (const state of this.#states.values()) state.timer = clearTimeout(state.timer);
    for (const lane of [this.#anonymousLane, this.#userLane]) this.#resume(lane);
    if (this.#readNote(FORGET_NOTE)) this.#deleteAnonymous();
    this.#adopt();
  }

  #resume(lane) {
    lane.paused = clearTimeout(lane.paused);
    this.#run(lane);
  }

  #pause(lane, why, leastMs = 0) {
    clearTimeout(lane.paused);
    Object.assign(lane, { why, ready: [], reached: false, fails: lane.fails + 1 });
    lane.paused = setTimeout(() => this.#resume(lane), Math.max(leastMs, pauseMs(lane.fails)));
  }

  async #run(lane) {
    lane.runAgain = true;
    if (lane.running) return;
    lane.running = true;
    this.#loadStates();
    do lane.runAgain = false;
    while ((await this.#turn(lane)) || lane.runAgain);
    lane.running = false;
  }

  // Sends one batch of the lane. Calls the page's `user` and `token` outside of the lock, because `token` may hang.
  // Returns whether there may be more to send.
  async #turn(lane) {
    if (lane.paused || globalThis.document?.prerendering || !this.#hasWork(lane)) return false;
    // `onLine` may be wrong, so after a pause the client asks for /health. The client does not send a change instead,
    // because a change without an answer may end in doubt.
    if (globalThis.navigator?.onLine === false && !lane.reached) {
      lane.reached = lane.why === "offline" && !!(await this.#fetch("/health").catch(() => false));
      if (!lane.reached) return this.#pause(lane, "offline");
    }
    const session = lane === this.#userLane ? await this.#session(lane) : {};
    return session && this.#withLock(this.prefix + (session.user ?? ""), () => this.#sendBatch(lane, session));
  }

  // A user's denied change is work, too, because the page may give another token.
  #hasWork(lane) {
    for (const state of this.#states.values())
      if (this.#isIdle(state) && this.#lane(state.entry) === lane && (state.entry.user || state.why !== DENIED)) return true;
    return false;
  }

  // Returns the signed-in user, a token, and whether the token is fresh; undefined if no change of the user can be sent.
  async #session(lane) {
    const { fresh } = lane;
    const user = this.user();
    Object.assign(lane, { user, fresh: false });
    const changes = [...this.#states.values()].filter(({ entry, outcome }) => user && !outcome && entry.user === user);
    try {
      const token = changes.length ? await this.#tokenOf(user, fresh) : undefined;
      for (const state of changes) if (state.why === DENIED && state.token !== token) this.#release(state);
      if (changes.some((state) => state.why !== DENIED && this.#isIdle(state))) return { user, token, fresh };
    } catch {
      return this.#pause(lane, "no-token");
    }
    // There is no event of a sign-in, so the client checks. The timer does not keep a process alive.
    clearTimeout(lane.checkTimer);
    lane.checkTimer = setTimeout(() => this.#run(lane), Math.min(CHECK_MS_MAX, CHECK_MS * 2 ** lane.checks++));
    lane.checkTimer.unref?.();
  }

  // Calls `run` under the lock, so that one tab sends at a time. A second sender would only cost requests.
  async #withLock(name, run) {
    const locks = globalThis.navigator?.locks;
    if (!locks || this.#locklessBatches-- > 0) return run();
    let result;
    const cut = new AbortController();
    const timer = setTimeout(() => cut.abort(), LOCK_MS);
    const runLocked = () => {
      clearTimeout(timer);
      return (result = run());
    };
    // The request for the lock fails after LOCK_MS, or at once in a sandboxed page, which may not use locks.
    const lock = locks.request(name, { signal: cut.signal }, runLocked);
    await lock.catch(() => (this.#locklessBatches = LOCKLESS_BATCHES));
    clearTimeout(timer);
    return result ?? run();
  }

  // Sends the next changes of the lane, or asks for receipts (see #asksFirst). Returns whether the lane had a change.
  async #sendBatch(lane, session) {
    // Another user may have signed in since the changes were read.
    lane.ready = lane.ready.filter(({ entry }) => entry.user === session.user);
    if (!lane.ready.length) lane.ready = this.#changesToSend(session.user);
    if (!lane.ready.length) return false;
    let requests;
    if (this.#asksFirst(lane.ready[0])) {
      requests = [this.#askReceipts(lane, session, lane.ready.filter((state) => this.#asksFirst(state)))];
      lane.ready = [];
    } else {
      // If the server does not answer, a batch of one change leaves one change in doubt, and not four.
      const changes = lane.ready.splice(0, lane.fails || lane.slow ? 1 : BATCH_CHANGES_MAX);
      requests = changes.map((state) => this.#attempt(lane, session, state));
    }
    const ended = Promise.all(requests).then((answers) => {
      const busy = answers.filter((answer) => answer && kindOf(answer) === "busy");
      if (busy.length) this.#pause(lane, UNANSWERED, Math.max(...busy.map(retryAfterMs)));
      else if (!lane.paused) Object.assign(lane, { fails: 0, checks: 0, why: undefined });
    });
    let timer;
    const isSlow = await Promise.race([ended, new Promise((done) => (timer = setTimeout(() => done(true), LOCK_MS)))]);
    clearTimeout(timer);
    if (!isSlow) return true;
    // The lane sends its next batch before this batch has ended, so a slow answer delays only its own change.
    lane.slow++;
    ended.then(() => {
      lane.slow--;
      this.#run(lane);
    });
    return true;
  }

  #isIdle({ outcome, timer, busy }) {
    return !outcome && !timer && !busy;
  }

  // Returns the changes of a user to send now. The changes of one like are a queue. Its head is the oldest change that
  // may have been sent, or else the newest. Older changes of the like that were never sent are superseded.
  #changesToSend(user) {
    const waiting = [...this.#states.values()].filter(({ entry, outcome }) => !outcome && entry.user === user);
    const heads = new Map();
    for (const state of waiting.sort((one, other) => one.entry.at - other.entry.at)) {
      const queue = isLike(state.entry) ? this.#name({ ...state.entry, key: "" }) : state.name;
      const earlier = heads.get(queue);
      if (earlier && this.#stillWaits(earlier) && !earlier.entry.sent && !earlier.isUnreadable)
        this.#settle(earlier, { state: "superseded" });
      if (earlier && !earlier.outcome) state.why = "earlier";
      else {
        heads.set(queue, state);
        if (state.why === "earlier") state.why = undefined;
      }
    }
    const ready = [...heads.values()].filter((state) => state.why !== DENIED && this.#isIdle(state));
    return ready.sort((one, other) => (one.fails ?? 0) - (other.fails ?? 0));
  }

  // Returns whether a change still waits. Reads the storage, because another tab may have sent or settled the change.
  #stillWaits(state) {
    if (state.outcome || !state.stored) return !state.outcome;
    const entry = this.#load(state.name);
    state.isUnreadable = entry === undefined;
    if (entry) this.#track(state.name, entry);
    if (entry === null) this.#handleLoss(state);
    return !state.outcome;
  }

  // Handles a change whose item is gone: the storage was cleared, or another process has settled the change, and may
  // have sent the change at any time since `at`. A change of this page's callers stays in the memory.
  #handleLoss(state) {
    state.stored = false;
    state.isLost = true;
    state.entry = { ...state.entry, sent: state.entry.sent || state.entry.at };
    if (state.promise) return;
    state.outcome = { state: "forgotten" };
    this.#states.delete(state.name);
  }

  // Returns whether the client asks for the receipt of a change before it sends the change: the change may have been
  // sent, and another tab may have settled and removed it, or the change was first sent long ago.
  #asksFirst(state) {
    return state.entry.sent && (state.isLost || !this.#isYoungerThan(state, ASK_AFTER_MS));
  }

  // Returns false, too, if the change seems to be sent later than now, because then a clock was set.
  #isYoungerThan(state, ms) {
    const ageMs = this.#ageMs(state);
    return ageMs > -FUTURE_MS && ageMs < ms;
  }

  // Returns how long ago a change was first sent. `timed`: `sent` is in the server's time; if not, in this machine's
  // time. `began`: this page sent the change, and no answer has corrected `sent`. Then this machine's two clocks may
  // say different times, because the machine slept or a clock was set. Node takes the monotonic clock. A browser takes
  // the longer time, but not a time above SLEEP_MS_MAX.
  #ageMs({ entry: { sent, timed }, began }) {
    if (!began) return (timed ? this.#now() : Date.now()) - sent;
    const tickedMs = monotonicMs() - began.ticks;
    const passedMs = Date.now() - began.at;
    return nodeOs() || passedMs < tickedMs || passedMs > SLEEP_MS_MAX ? tickedMs : passedMs;
  }

  // Sends one change. Returns the answer; undefined: the change was not sent.
  async #attempt(lane, session, state) {
    if (!this.#stillWaits(state) || this.#asksFirst(state)) return;
    const before = state.entry;
    const secret = isAnonymousLike(before) && this.#secret();
    if (secret === undefined) return this.#delay(state, "storage");
    if (secret === null) return this.#settle(state, { state: "forgotten" });
    const first = before.sent ? {} : { sent: this.#now(), timed: this.#isClockKnown };
    if (!before.sent) state.began = { ticks: monotonicMs(), at: Date.now() };
    const entry = (state.entry = { ...before, ...first, tries: before.tries + 1 });
    if (!this.#store(state)) {
      state.entry = before;
      return this.#delay(state, "storage");
    }
    const wasLost = state.isLost;
    state.busy = true;
    const answer = await this.#send(entry, session.token).catch(() => NO_ANSWER);
    state.busy = false;
    const { body, headers } = answer;
    const kind = kindOf(answer);
    const counted = isLike(entry) ? body?.present === entry.present : body?.counted;
    if (kind === "refusal") this.#settle(state, { state: "refused", answer: body });
    else if (kind === "answer" && counted && body.counter === entry.counter && body.id === entry.id) {
      const replayed = headers.get("idempotency-replayed") === "true";
      this.#settle(state, { state: "counted", replayed, answer: body });
      this.#setServerTime(headers);
    } else this.#handleUnsettled(lane, session, state, answer, wasLost, before);
    return answer;
  }

  // Handles an answer that does not settle the change. `wasLost`: the change was lost before the request was sent.
  // `before`: the entry before this attempt to send the change; undefined: the request asked for the receipt.
  #handleUnsettled(lane, session, state, answer, wasLost, before) {
    const { status } = answer;
    const kind = kindOf(answer);
    // `forget` or another tab has ended the change since the request was sent.
    if (state.outcome) return;
    // A busy server also pauses the lane, in #sendBatch. Any other answer delays only this change.
    if (kind === "busy") return this.#fail(state, UNANSWERED, status);
    if (kind !== DENIED) return this.#delay(state, UNANSWERED, status);
    // The request was denied. Reads the storage, because another tab may have sent or settled the change.
    if (!this.#stillWaits(state)) return;
    // If the item was lost since the request was sent, the next turn asks for the receipt.
    if (state.isLost !== wasLost) return;
    if (before) this.#undoAttempt(state, before);
    if (status !== 401 || !session.user || session.fresh) return this.#deny(state, status, session.token);
    // After the first 401 the next turn asks the page for a fresh token, and sends the change with this token.
    lane.fresh = true;
    lane.ready.unshift(state);
  }

  // A denied attempt does not count as sent. If another tab has sent the change since, the change may have counted.
  #undoAttempt(state, before) {
    if (state.entry.tries !== before.tries + 1) return;
    state.entry = { ...state.entry, sent: before.sent };
    if (!before.sent) state.began = undefined;
    this.#store(state);
  }

  // Lets a change wait for another token, another page or retry(), and tells its callers.
  #deny(state, status, token) {
    state.token = token;
    this.#fail(state, DENIED, status);
    state.done?.({ state: DENIED, status });
    const answer = `${status} to changes of ${state.entry.counter}`;
    if (this.#warned.has(answer)) return;
    this.#warned.add(answer);
    console.warn(`tally: ${this.api} answers ${answer}. They wait for another user, token or page.`);
  }

  // Lets a denied change be sent again. Its caller knows of the denial, so later callers wait for a new promise.
  #release(state) {
    Object.assign(state, { why: undefined, status: undefined });
    if (state.promise) state.promise = new Promise((done) => (state.done = done));
  }

  // Counts an attempt to send the change, or to ask for its receipt, and reports why the change still waits.
  #fail(state, why, status) {
    state.fails = (state.fails ?? 0) + 1;
    Object.assign(state, { why, status });
    this.#report(state);
  }

  // Lets a change pause before it is sent again.
  #delay(state, why, status) {
    this.#fail(state, why, status);
    state.timer = setTimeout(() => {
      state.timer = undefined;
      this.#run(this.#lane(state.entry));
    }, pauseMs(state.fails));
  }

  #send({ counter, id, key, amount, present, user }, token) {
    const path = `/counters/${counter}/${encodeURIComponent(id)}/`;
    const options = this.#authorization(token);
    // A string is sent as text/plain and needs no preflight, so an increment is sent even while the visitor leaves.
    if (present == null) return this.#fetch(`${path}increments`, { ...options, method: "POST", body: JSON.stringify({ key, amount }) });
    const headers = { ...options.headers, ...(user ? {} : { "tally-secret": this.#secret() }), "idempotency-key": key };
    return this.#fetch(`${path}${user ? "mine" : "anonymous"}`, { method: present ? "PUT" : "DELETE", headers });
  }

  // Asks for the receipts of the first change and of alike changes that fit into one address. Returns the answer.
  async #askReceipts(lane, session, changes) {
    const [first] = changes;
    const asked = operation(first.entry);
    const isAlike = ({ entry, asksAlone }) => operation(entry) === asked && !asksAlone;
    const alike = first.asksAlone ? [first] : changes.filter(isAlike);
    const [part] = intoParts(alike.map(({ entry: { counter, id, key } }) => query({ target: `${counter}/${id}`, key })));
    const states = alike.slice(0, part.length);
    const path = `/receipts${session.user ? "/own" : ""}?of=${asked}&${part.join("&")}`;
    for (const state of states) state.busy = true;
    const answer = await this.#fetch(path, this.#authorization(session.token)).catch(() => NO_ANSWER);
    const kind = kindOf(answer);
    const left = kind === "answer" ? await this.#settleByReceipts(states, answer).catch(() => states) : states;
    for (const state of states) state.busy = false;
    // One receipt may be the cause of the answer, so the client asks for each receipt alone.
    const mayAskAlone = states.length > 1 && (kind === "refusal" || kind === "failed");
    if (mayAskAlone) for (const state of states) state.asksAlone = true;
    // Tally refuses to look for this receipt, so the client sends the change, and takes Tally's answer to the change.
    else if (kind === "refusal") this.#allowResend(first);
    else for (const state of left) this.#handleUnsettled(lane, session, state, answer, state.isLost);
    return answer;
  }

  // Settles the changes that have a receipt. Allows a change without a receipt to be sent again, or ends it in doubt.
  // Returns the changes that the answers do not decide.
  async #settleByReceipts(states, { headers, body: { receipts } }) {
    if (receipts.length !== states.length) return states;
    this.#setServerTime(headers);
    const undecided = states.filter((state, index) => {
      const { state: receipt, answer } = receipts[index];
      if (receipt === "counted") this.#settle(state, { state: receipt, replayed: true, answer });
      return !state.outcome;
    });
    // The client asks each time how long receipts live, because a deployment may change this. If /health does not list
    // the counter of a change, the change waits.
    if (!undecided.length) return [];
    const health = await this.#fetch("/health");
    const lives = health.body.receipts_live_s;
    // A clock may have been set since the answer with the receipts, so the client takes the time again.
    this.#setServerTime(health.headers);
    return undecided.filter((state) => {
      const lifeMs = lives[state.entry.counter] * 1000;
      if (!(lifeMs > 0)) return true;
      if (!this.#isYoungerThan(state, lifeMs - MARGIN_MS)) this.#settle(state, { state: "doubt" });
      else this.#allowResend(state);
    });
  }

  // Lets a change without a receipt be sent again. If a user's change or a like was lost, its user may have removed it
  // with `forget`, or replaced it by a later change. So this change ends.
  #allowResend(state) {
    const wasLost = state.isLost;
    if (!this.#stillWaits(state)) return;
    // If the item was removed since the client asked for the receipt, the next turn asks once more.
    if (state.isLost !== wasLost) return;
    if (wasLost && isLike(state.entry)) return this.#settle(state, { state: "superseded" });
    if (wasLost && state.entry.user) return this.#settle(state, { state: "forgotten" });
    state.entry = { ...state.entry, sent: 0 };
    if (!this.#store(state)) this.#delay(state, "storage");
  }

  // Reads each `counter:id` from `path`, in parts. `field`: the member of an answer that has the list.
  async #read(path, names, field, options) {
    const encodedNames = names.map(tallyOf);
    const parts = intoParts(encodedNames.map((name) => query({ of: name })));
    const answers = await Promise.allSettled(parts.map((part) => this.#readPart(path, part, field, options)));
    if (answers.length && answers.every(({ reason }) => reason)) throw answers[0].reason;
    return answers.flatMap(({ value, reason }, index) => {
      const namesOfPart = encodedNames.splice(0, parts[index].length);
      return value ?? namesOfPart.map((name) => unreadable(name, reason));
    });
  }

  async #readPart(path, part, field, options) {
    const { status, body } = await this.#fetch(`${path}?${part.join("&")}`, options);
    if (status === 200 && body?.[field]?.every(Boolean)) return body[field];
    throw new Error(`tally: ${path}: ${body?.detail ?? `answered ${status}`}`);
  }

  async #fetch(path, options) {
    const cut = new AbortController();
    const request = async () => {
      const answer = await fetch(this.api + path, { keepalive: true, credentials: "omit", signal: cut.signal, ...options });
      return { status: answer.status, headers: answer.headers, body: parsed(await answer.text()) };
    };
    return withTimeout(request()).finally(() => cut.abort());
  }

  // Takes the server's time from an answer, because a visitor's clock may be wrong, or be set while changes wait. A
  // difference of up to 2 s may not be the clock's, because the Date has whole seconds and the answer takes time.
  #setServerTime(headers) {
    const aheadMs = Date.parse(headers.get("date")) - Date.now();
    if (Number.isNaN(aheadMs)) return;
    const differs = Math.abs(aheadMs - this.aheadMs) > 2000;
    if (differs) this.aheadMs = aheadMs;
    if (differs || !this.#isClockKnown) orUndefined(() => this.#setItem(this.prefix, this.aheadMs));
    this.#isClockKnown = true;
    for (const state of this.#states.values()) this.#correctSent(state);
  }

  // Stores in the server's time when a change was sent, because this machine's clock may be set later.
  #correctSent(state) {
    const { entry, began, outcome, stored } = state;
    if (outcome || !entry.sent || (entry.timed && !began)) return;
    const sent = this.#now() - this.#ageMs(state);
    state.began = undefined;
    if (entry.timed && Math.abs(sent - entry.sent) < 2000) return;
    state.entry = { ...entry, sent, timed: true };
    // Another tab may have settled and removed the change.
    (stored && this.#load(state.name) === null) || this.#store(state);
  }

  // Returns a token of this user, and not of another user who has signed in since.
  async #tokenOf(user, fresh = false) {
    const token = (await withTimeout((async () => this.token(fresh))())).trim();
    // If the client sent a token that a header cannot hold, `fetch` would fail as it does without a network.
    if (subject(token) !== user || !/^[!-~]+$/.test(token)) throw new Error("tally: `token` gives no token of the user");
    return token;
  }

  #authorization(token) {
    return { headers: token ? { authorization: `Bearer ${token}` } : {} };
  }
}
