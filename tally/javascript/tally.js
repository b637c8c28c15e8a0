// Counts each change exactly once, from the button to the number. tally.d.ts says what callers see, docs/browser.md
// what holds and why. Comments have lines of their own: the API serves this file without them.

// The client ignores a later answer. API Gateway gives up after 30 s.
const TIMEOUT_MS = 35e3;
// After this time the client works without the lock, for LOCKLESS_TURNS turns: a page in the background may hold it for
// ever. If an answer takes longer than this, the next changes do not wait for it.
const LOCK_MS = 5e3;
const LOCKLESS_TURNS = 20;
// The longest pause between retries, or FORCED_MS_MAX if the server asks for more.
const PAUSE_MS_MAX = 30e3;
const FORCED_MS_MAX = 300e3;
// A change that waits for another user or token checks for one after this time, and then ever more seldom.
const LOOK_MS = 30e3;
const LOOK_MS_MAX = 3600e3;
const TOGETHER_MAX = 4;
// The API takes this many, and 10 KB of address and headers, of which a token needs some.
const ASKED_MAX = 100;
const ASKED_BYTES_MAX = 6000;
// If a change was first sent longer ago, the client asks for its receipt first. A receipt lives for a day or more.
const ASK_AFTER_MS = 3600e3;
// The client ignores the last hour of a receipt, because requests take time and clocks may be set.
const MARGIN_MS = 3600e3;
// A Date has whole seconds, so a change that was just sent may seem to be in the future.
const AHEAD_MS = 60e3;
// A machine does not sleep longer. If the clock moved further, somebody set it.
const SLEEP_MS_MAX = 365 * 86400e3;
// `make generate` writes this line from the server's own rules.
const FORMS = { counter: /^(?=.{1,255}$)[a-z][a-z0-9_-]{0,31}$/, id: /^(?=.{1,256}$)(\.{3,}|\.*[A-Za-z0-9_:~@-][A-Za-z0-9._:~@-]*)$/, key: /^(?=.{1,255}$)[!#-+\--~][!-+\--~]*$/, anyonesKey: /^(?=.{22,255}$)[!#-+\--~][!-+\--~]*$/, amountMax: 1000000000000000 };

const PROBLEM = "urn:problem-type:tally:";
const UNANSWERED = "unanswered";
const DENIED = "denied";
const FORGETS = "forgets";
const SILENCE = { status: 0 };
const REUSED = {
  state: "refused",
  answer: { type: `${PROBLEM}key-reused`, title: "Key reused", status: 422, detail: "This key was used for another change." },
};

// The clients of this page, by their storage. A browser sends the event `storage` only to other pages.
const PAGE = (globalThis[Symbol.for("tally")] ??= new WeakMap());

// Node has a clock that cannot be set, and that runs while the machine sleeps. A browser's clock may stop then.
const node = () => !globalThis.document && globalThis.process?.getBuiltinModule?.("os");
const ticks = () => (node() ? node().uptime() * 1000 : performance.now());

const pause = (tries) => Math.min(PAUSE_MS_MAX, 500 * 2 ** tries) * (0.5 + Math.random() / 2);
const newKey = () => crypto.getRandomValues(new Uint8Array(16)).join("-");
const isWish = ({ present }) => present != null;
const isAnonymous = ({ present, user }) => present != null && !user;
const operation = ({ present, user }) =>
  present == null ? "increment" : `${present ? "put" : "delete"}_${user ? "mine" : "anonymous"}`;
const query = (fields) => new URLSearchParams(fields).toString();
const tried = (what) => {
  try {
    return what();
  } catch {}
};
// A whole number beyond 2^53 is a BigInt. The JSON text marks it, also in the storage.
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*/gi;
const marked = (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(+token) ? `"\\u0000${token}"` : token);
export const fromJson = (text) =>
  JSON.parse(/\d{16}/.test(text) ? text.replace(TOKENS, marked) : text, (_, one) =>
    typeof one === "string" && /^\0-?\d+$/.test(one) ? BigInt(one.slice(1)) : one,
  );
const toJson = (value) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `\0${one}` : one));
const parsed = (text) => tried(() => fromJson(text));

// Databases give ids and amounts as numbers and as BigInts.
const text = (one) => (typeof one === "bigint" || Number.isSafeInteger(one) ? String(one) : one);
const named = (what, one, form) => {
  const given = text(one);
  if (typeof given === "string" && form.test(given)) return given;
  throw new TypeError(`tally: ${String(one)} is no ${what}`);
};
// The id of what a page names, as `id_of` in tally/ids.py: `/posts/x/` is `~2Fposts~2Fx~2F`, and an id is itself.
const ENCODED = /(%([89a-f][\da-f]|2[02]|3[ce]|5e|60|7[bd]))+/gi;
export const idOf = (one) => {
  const given = text(one);
  if (typeof given !== "string" || /[\0-\x1f\x7f#]|^[\w.:~@-]*$|\p{Cs}/u.test(given)) return given;
  const plain = given.replace(ENCODED, (run) => tried(() => decodeURIComponent(run)) ?? run).normalize("NFC");
  const code = (sign) => `~${sign.charCodeAt().toString(16).toUpperCase()}`;
  return encodeURIComponent(plain).replace(/[!'()*~]/g, code).replace(/%3A/g, ":").replace(/%40/g, "@").replaceAll("%", "~");
};
// The name of a number. Tally itself normalises the address of a page.
export const isOfPages = (counter) => /^((bot_)?visits|page_visitors)$/.test(counter);
export const tallyOf = (of) => {
  const [counter, id] = String(of).split(/:(.*)/s);
  return id === undefined || isOfPages(counter) ? of : `${counter}:${idOf(id)}`;
};
const whole = (one) => {
  const given = typeof one === "bigint" ? Number(one) : one;
  if (given === undefined || (Number.isInteger(given) && Math.abs(given) <= FORMS.amountMax)) return given;
  throw new TypeError(`tally: ${String(one)} is no amount`);
};

const subject = (token) => {
  const bytes = atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"));
  return text(JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)))).sub);
};

// Rejects if the promise takes too long.
const timely = (promise) => {
  let timer;
  const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error("tally: no answer in time")), TIMEOUT_MS)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

// The kind of an answer, from Tally or another server. Only an answer of Tally settles a change.
const kindOf = ({ status, body }) => {
  if (status < 300 && body instanceof Object) return "answer";
  if (status === 500) return "alone";
  if (status < 400 || status > 500 || [408, 425, 429].includes(status)) return "busy";
  // `String` throws for some values of other servers.
  return status !== 401 && JSON.stringify(body?.type)?.startsWith(`"${PROBLEM}`) ? "refusal" : DENIED;
};

const unread = (one, { message }) => {
  const [counter] = one.split(":", 1);
  const error = { type: "about:blank", title: "Not read", status: 0, detail: message };
  return { counter, id: one.slice(counter.length + 1), error };
};

// Splits a list into parts that each fit into an address.
const packed = (queries) => {
  const parts = [];
  let bytes = Infinity;
  for (const one of queries) {
    bytes += one.length + 1;
    if (bytes > ASKED_BYTES_MAX || parts.at(-1).length === ASKED_MAX) {
      parts.push([]);
      bytes = one.length;
    }
    parts.at(-1).push(one);
  }
  return parts;
};

export class Tally extends EventTarget {
  // What waits, by its name in the storage: { name, entry, stored }, and what this page alone knows of it: `promise` and
  // `done` if a caller of this page made it, `why` it waits and the last `status`, `timer`, `fails`, and how it ended.
  #states = new Map();
  // Anonymous changes wait for no user and no token. What a lane has `ready` is sent before the storage is read again.
  #anyones = { ready: [], fails: 0, slow: 0 };
  #users = { ready: [], fails: 0, slow: 0, looks: 0 };
  #lockless = 0;
  #adopts = false;
  #looks;
  #timed = false;
  #listener = (event) => this.#heard(event);
  #warned = new Set();

  // Not `new URL(…, import.meta.url)`: bundlers copy such a file.
  constructor({ api = import.meta.url.replace(/[^/]*\/[^/]*$/, ""), user = () => {}, token = () => {}, storage } = {}) {
    super();
    if (!/^https?:/.test(api)) throw new TypeError(`tally: api must be an address, not ${api}`);
    this.api = api.replace(/\/+$/, "");
    // Where it throws, nobody is signed in. Nobody waits for a promise, but one that rejects would end a process.
    this.user = () =>
      tried(() => {
        const found = user();
        Promise.resolve(found).catch(() => {});
        return found && typeof text(found) === "string" ? text(found) : undefined;
      });
    this.token = token;
    this.prefix = `tally1 ${this.api} `;
    // This browser's secret. Names with this prefix store its anonymous likes, and whether they are being forgotten.
    this.own = `tally1-own ${this.api} `;
    this.storage = storage ?? tried(() => document && localStorage);
    this.aheadMs = 0;
    if (this.storage) PAGE.set(this.storage, [...(PAGE.get(this.storage) ?? []), this.#listener]);
    globalThis.addEventListener?.("storage", this.#listener);
    globalThis.addEventListener?.("online", () => this.retry());
    // Also when a prerendered page is shown, or a page of the back/forward cache. Not when the page is left, because the
    // browser would keep the page while it waits for the lock.
    globalThis.document?.addEventListener("visibilitychange", () => document.hidden || this.#wake());
    this.#wake();
  }

  // The name of a number, as the elements of any version know it.
  of(counter, id) {
    return tallyOf(`${counter}:${text(id) ?? ""}`);
  }

  increment(counter, id, { amount, key, signed } = {}) {
    const user = signed ? this.#signedIn() : undefined;
    const own = key === undefined ? newKey() : named("key", key, user ? FORMS.key : FORMS.anyonesKey);
    return this.#add({ counter, id, amount: whole(amount), user, key: own });
  }

  like(counter, id, present = true, { anonymous } = {}) {
    // Without a counter or an id a sign-in does not help.
    named("counter or id", counter, FORMS.counter);
    named("counter or id", idOf(id), FORMS.id);
    const own = anonymous && !this.user();
    if (own && !this.#secret(true)) throw new Error("tally: nobody is signed in, and this browser stores nothing for this site");
    const user = own ? undefined : this.#signedIn();
    return this.#add({ counter, id, present: !!present, user, key: newKey() });
  }

  values(of, { fresh = false } = {}) {
    return this.#read("/tallies", of, "tallies", fresh ? { cache: "reload" } : {});
  }

  async mine(of) {
    if (!this.user() && this.#secret()) return this.#readOwn(of);
    const user = this.#signedIn();
    this.#adopt();
    return this.#read("/mine", of, "mine", this.#signed(await this.#tokenOf(user)));
  }

  waiting() {
    const found = new Map();
    for (const name of this.#names()) found.set(name, this.#load(name));
    for (const [name, { entry, stored, promise, outcome }] of this.#states)
      if (outcome) found.delete(name);
      else if (!stored || (promise && !found.get(name))) found.set(name, entry);
    return [...found.values()]
      .filter((entry) => entry && !entry.outcome)
      .map((entry) => this.#shown(entry))
      .sort((one, other) => one.at - other.at);
  }

  retry() {
    for (const state of this.#states.values()) if (state.why === DENIED) this.#release(state);
    this.#wake();
  }

  forget(...users) {
    this.#list();
    if (!users.length && this.#secret()) this.#note(FORGETS, 1);
    if (!users.length) return this.#takeBack();
    const [user] = users;
    for (const state of this.#states.values())
      if (state.entry.user && state.entry.user === text(user)) this.#settle(state, { state: "forgotten" });
  }

  #signedIn() {
    const user = this.user();
    if (!user) throw new Error("tally: nobody is signed in");
    return (this.#users.user = named("user", user, /^\P{Cs}*$/u));
  }

  // The secret of this browser; null: there is no secret; undefined: the storage cannot be read.
  #secret(make) {
    return tried(() => {
      const kept = () => this.storage.getItem(this.own);
      const isKept = () => FORMS.anyonesKey.test(kept());
      if (make && !isKept()) this.storage.setItem(this.own, newKey());
      if (make) this.storage.removeItem(this.own + FORGETS);
      return isKept() ? kept() : null;
    });
  }

  #noted(name) {
    return tried(() => this.storage.getItem(this.own + name));
  }

  // When this browser made a like; 0: it has no such like, or the stored time is not the client's.
  #likedAt(thing) {
    const at = Number(this.#noted(thing));
    return Number.isFinite(at) ? at : 0;
  }

  #note(name, value) {
    tried(() => (value ? this.storage.setItem(this.own + name, value) : this.storage.removeItem(this.own + name)));
  }

  // The anonymous likes of this browser, by its storage.
  #liked() {
    const things = this.#keys(this.own).map((name) => name.slice(this.own.length).split(" "));
    return things.filter(([counter, id]) => id && FORMS.counter.test(counter) && FORMS.id.test(id));
  }

  #readOwn(of) {
    return this.#read("/anonymous", of, "anonymous", { headers: { "tally-secret": this.#secret() } });
  }

  // A user who signs in takes over the browser's likes. The user's like is put first. When it counts, #keep deletes the
  // browser's. So the number is never one too low, and if the page closes in between, the next page continues.
  async #adopt() {
    const liked = this.#liked();
    if (this.#adopts || !liked.length || !this.#secret() || !this.user() || this.#noted(FORGETS)) return;
    this.#adopts = true;
    const before = new Map(liked.map((thing) => [thing.join(" "), this.#noted(thing.join(" "))]));
    const found = await this.#readOwn(liked.map((thing) => thing.join(":"))).catch(() => []);
    this.#adopts = false;
    const user = this.user();
    const waits = new Set(this.waiting().filter(isWish).map(({ counter, id }) => `${counter} ${id}`));
    let left = !found.length;
    for (const { counter, id, present } of found) {
      const thing = `${counter} ${id}`;
      // A change that waits, or that was counted during the read, is newer than the answer.
      const noted = this.#noted(thing);
      if (waits.has(thing)) continue;
      if (!noted || noted !== before.get(thing) || present == null) left = true;
      else if (!present) this.#note(thing);
      else if (user) this.#add({ counter, id, present, user, key: newKey() });
    }
    clearTimeout(this.#looks);
    if (left) this.#looks = setTimeout(() => this.#adopt(), PAUSE_MS_MAX);
  }

  // Deletes the anonymous likes of this browser; without likes it deletes the secret.
  #takeBack() {
    const wanted = new Map(this.#liked().map(([counter, id]) => [`${counter} ${id}`, true]));
    const waits = [...this.#states.values()].filter(({ entry, outcome }) => !outcome && isAnonymous(entry));
    waits.sort((one, other) => one.entry.at - other.entry.at);
    for (const { entry } of waits) wanted.set(`${entry.counter} ${entry.id}`, entry.present);
    if (!wanted.size) for (const name of ["", FORGETS]) this.#note(name);
    const things = [...wanted].filter(([, present]) => present).map(([thing]) => thing.split(" "));
    return Promise.all(things.map(([counter, id]) => this.#add({ counter, id, present: false, key: newKey() })));
  }

  // Stores an anonymous like when its change has ended.
  #keep({ user, counter, id, present, at }, { state }) {
    const thing = `${counter} ${id}`;
    const counted = state === "counted";
    // A frozen page receives the outcome of an earlier change late.
    if (user ? !this.#noted(thing) : this.#likedAt(thing) > at) return;
    if (user && counted) this.#add({ counter, id, present: false, key: newKey() });
    else if (user || !present) (counted || state === "refused") && this.#note(thing);
    else if (counted || state === "doubt") this.#note(thing, at);
  }

  // Stored before anything is sent, in the task of the click.
  #add(change) {
    const counter = named("counter or id", change.counter, FORMS.counter);
    const id = named("counter or id", idOf(change.id), FORMS.id);
    const entry = { ...change, counter, id, at: this.#now(), sent: 0, tries: 0 };
    const name = this.#name(entry);
    if (isWish(entry)) entry.at = Math.max(entry.at, this.#lastAt(entry) + 1, 1 + this.#likedAt(`${counter} ${id}`));
    // A change with the caller's key may wait here already, and may have been sent.
    const found = this.#states.get(name) ?? this.#known(name, this.#load(name));
    const state = found ?? { name, entry };
    if (state.outcome) return Promise.resolve(state.outcome);
    state.promise ??= new Promise((done) => (state.done = done));
    if (state.why === DENIED) state.done({ state: DENIED, status: state.status });
    const { amount } = state.entry;
    if (amount !== entry.amount) {
      if (amount !== undefined && entry.amount !== undefined) return Promise.resolve(REUSED);
      // Only Tally knows whether this amount is the counter's own step.
      return state.promise.then((outcome) => (outcome.state === DENIED ? outcome : this.#add(change)));
    }
    if (!found) {
      this.#states.set(name, state);
      this.#put(state);
      this.#say(state);
    }
    this.#run(this.#lane(entry));
    return state.promise;
  }

  // When the last change of a like was made. A later change gets a later time, whatever the clock says.
  #lastAt(entry) {
    const things = this.#name({ ...entry, key: "" });
    const names = [...this.#names(), ...this.#states.keys()].filter((name) => name.startsWith(things));
    return Math.max(0, ...names.map((name) => (this.#states.get(name)?.entry ?? this.#load(name))?.at ?? 0));
  }

  #name({ user = "", counter, id, key }) {
    return this.prefix + [encodeURIComponent(user), counter, id, key].join(" ");
  }

  #lane({ user }) {
    return user ? this.#users : this.#anyones;
  }

  #now() {
    return Date.now() + this.aheadMs;
  }

  #set(name, value) {
    this.storage.setItem(name, value);
    for (const listener of PAGE.get(this.storage))
      if (listener !== this.#listener) queueMicrotask(() => listener({ key: name, newValue: value }));
    return true;
  }

  // Returns false if the storage keeps an old state. A change that the storage refuses lives in the memory of the page.
  #put(state) {
    const set = () => !!tried(() => this.#set(state.name, toJson(state.entry)));
    if (set()) return (state.stored = true);
    if (state.stored && !(state.promise && tried(() => (this.storage.removeItem(state.name), true)))) return false;
    state.stored &&= set();
    return true;
  }

  #keys(prefix) {
    const keys = [];
    for (let at = tried(() => this.storage.length) || 0; at--; ) keys.push(tried(() => this.storage.key(at)));
    return keys.filter((name) => name?.startsWith(prefix));
  }

  #names() {
    const names = new Set(this.#keys(this.prefix));
    // The item with the bare prefix is the clock.
    if (names.delete(this.prefix) && !this.#timed) this.#setClock(tried(() => this.storage.getItem(this.prefix)));
    return names;
  }

  // Returns an entry; null: there is no entry; undefined: it cannot be read, or another program wrote it.
  #load(name) {
    return tried(() => {
      const found = this.storage.getItem(name);
      return found == null ? null : this.#entry(name, found);
    });
  }

  // The name of an item has the user, counter, id and key. Its text has the rest.
  #entry(name, value) {
    const entry = parsed(value);
    const parts = name.slice(this.prefix.length).split(" ");
    const [user, counter, id, key] = parts;
    if (parts.length !== 4 || !FORMS.counter.test(counter) || !FORMS.id.test(id) || !FORMS.key.test(key)) return;
    if (![entry?.at, entry?.sent, entry?.tries].every(Number.isFinite)) return;
    if (isWish(entry) && typeof entry.present !== "boolean") return;
    return { ...entry, user: tried(() => decodeURIComponent(user)) || undefined, counter, id, key };
  }

  // The state of an entry that is stored, if it is one.
  #known(name, entry) {
    if (!entry) return;
    const state = this.#states.get(name) ?? { name, stored: true };
    state.entry = entry;
    this.#states.set(name, state);
    // A tab has died after it wrote how this one ended.
    if (entry.outcome) this.#settle(state, entry.outcome);
    return state;
  }

  #list() {
    const names = this.#names();
    for (const [name, { promise, stored }] of this.#states)
      if (!promise && stored && !names.has(name)) this.#states.delete(name);
    for (const name of names) this.#states.has(name) || this.#known(name, this.#load(name));
  }

  // What an earlier answer said, here or in another tab.
  #setClock(value) {
    const aheadMs = parsed(value ?? "");
    if (!Number.isFinite(aheadMs)) return;
    this.#timed = true;
    this.aheadMs = aheadMs;
  }

  // Another tab has stored a change, or says how one ended; without a name, the storage was cleared.
  #heard({ key, newValue }) {
    if (!key) return this.#wake();
    if (key === this.prefix) return this.#setClock(newValue);
    if (!key.startsWith(this.prefix)) return;
    const before = this.#states.get(key);
    const entry = newValue && this.#entry(key, newValue);
    if (entry?.outcome) before && this.#known(key, entry);
    else if (entry) {
      // It has ended: what is heard of it is older, or another tab sends it once more.
      if (before ? before.outcome : entry.sent || !this.#load(key)) return;
      this.#say(this.#known(key, entry));
      if (!entry.sent) this.#run(this.#lane(entry));
    } else if (before?.promise) this.#run(this.#lane(before.entry));
    else this.#states.delete(key);
  }

  #shown(entry) {
    const { why, status } = this.#states.get(this.#name(entry)) ?? {};
    const lane = this.#lane(entry);
    return { ...entry, why: why ?? (entry.user === lane.user ? lane.why : "signed-out"), status };
  }

  #say({ entry, outcome }) {
    this.dispatchEvent(new CustomEvent("change", { detail: { entry: outcome ? entry : this.#shown(entry), outcome } }));
  }

  #settle(state, outcome) {
    if (state.outcome) return;
    state.outcome = outcome;
    clearTimeout(state.timer);
    const { name, entry, stored } = state;
    if (isWish(entry) && !entry.outcome) this.#keep(entry, outcome);
    // Other tabs learn from this how it ended: a removal alone does not say it.
    if (stored && !entry.outcome) tried(() => this.#set(name, toJson({ ...entry, outcome })));
    // What cannot be removed stays known, so that nobody here sends it again.
    if (!stored || tried(() => (this.storage.removeItem(name), true))) this.#states.delete(name);
    state.done?.(outcome);
    this.#say(state);
    if (!isAnonymous(entry)) return;
    if (entry.present) this.#adopt();
    else if (this.#noted(FORGETS) && !this.#liked().length) this.#takeBack();
  }

  #wake() {
    for (const state of this.#states.values()) state.timer = clearTimeout(state.timer);
    for (const lane of [this.#anyones, this.#users]) this.#resume(lane);
    if (this.#noted(FORGETS)) this.#takeBack();
    this.#adopt();
  }

  #resume(lane) {
    lane.paused = clearTimeout(lane.paused);
    this.#run(lane);
  }

  #pause(lane, why, leastMs = 0) {
    clearTimeout(lane.paused);
    Object.assign(lane, { why, ready: [], reached: false, fails: lane.fails + 1 });
    lane.paused = setTimeout(() => this.#resume(lane), Math.max(leastMs, pause(lane.fails)));
  }

  async #run(lane) {
    lane.again = true;
    if (lane.running) return;
    lane.running = true;
    this.#list();
    do lane.again = false;
    while ((await this.#turn(lane)) || lane.again);
    lane.running = false;
  }

  // The page's own functions are called here: outside of the lock, and with a limit. Returns whether there may be more.
  async #turn(lane) {
    if (lane.paused || globalThis.document?.prerendering || !this.#waits(lane)) return false;
    // The browser may be wrong. A question leaves no change in doubt.
    if (globalThis.navigator?.onLine === false && !lane.reached) {
      lane.reached = lane.why === "offline" && !!(await this.#fetch("/health").catch(() => false));
      if (!lane.reached) return this.#pause(lane, "offline");
    }
    const pass = lane === this.#users ? await this.#pass(lane) : {};
    return pass && this.#locked(this.prefix + (pass.user ?? ""), () => this.#batch(lane, pass));
  }

  #waits(lane) {
    for (const state of this.#states.values())
      if (this.#idle(state) && this.#lane(state.entry) === lane && (state.entry.user || state.why !== DENIED)) return true;
    return false;
  }

  // Who is signed in, with a token of theirs and of nobody else's; undefined if there is nothing to send for them.
  async #pass(lane) {
    const { fresh } = lane;
    const user = this.user();
    Object.assign(lane, { user, fresh: false });
    const own = [...this.#states.values()].filter(({ entry, outcome }) => user && !outcome && entry.user === user);
    try {
      const token = own.length ? await this.#tokenOf(user, fresh) : undefined;
      for (const state of own) if (state.why === DENIED && state.token !== token) this.#release(state);
      if (own.some((state) => state.why !== DENIED && this.#idle(state))) return { user, token, fresh };
    } catch {
      return this.#pause(lane, "no-token");
    }
    // There is no event of a sign-in, so the client checks. The timer does not keep a process alive.
    clearTimeout(lane.look);
    lane.look = setTimeout(() => this.#run(lane), Math.min(LOOK_MS_MAX, LOOK_MS * 2 ** lane.looks++));
    lane.look.unref?.();
  }

  // One tab sends at a time. A second sender would only cost requests.
  async #locked(name, run) {
    const locks = globalThis.navigator?.locks;
    let ran;
    if (locks && --this.#lockless < 0) {
      const cut = new AbortController();
      const timer = setTimeout(() => cut.abort(), LOCK_MS);
      const begin = () => {
        clearTimeout(timer);
        return (ran = run());
      };
      // A sandboxed page may not lock.
      await locks.request(name, { signal: cut.signal }, begin).catch(() => (this.#lockless = LOCKLESS_TURNS));
      clearTimeout(timer);
    }
    return ran ?? run();
  }

  async #batch(lane, pass) {
    // Another user may have signed in since the changes were read.
    lane.ready = lane.ready.filter(({ entry }) => entry.user === pass.user);
    if (!lane.ready.length) lane.ready = this.#heads(pass.user);
    const [first] = lane.ready;
    let tries;
    if (first && this.#isOld(first)) {
      tries = [this.#ask(lane, pass, lane.ready.filter((state) => this.#isOld(state)))];
      lane.ready = [];
    } else {
      const together = lane.ready.splice(0, lane.fails || lane.slow ? 1 : TOGETHER_MAX);
      tries = together.map((state) => this.#attempt(lane, pass, state));
    }
    if (!tries.length) return false;
    let late = 0;
    const ended = Promise.all(tries).then((waits) => {
      lane.slow -= late;
      const longest = Math.max(...waits);
      if (longest) this.#pause(lane, UNANSWERED, longest);
      else if (!lane.paused) Object.assign(lane, { fails: 0, looks: 0, why: undefined });
      if (late) this.#run(lane);
    });
    // A slow answer delays only its own change.
    let timer;
    const slow = new Promise((done) => (timer = setTimeout(() => done((lane.slow += late = 1)), LOCK_MS)));
    await Promise.race([ended, slow]);
    clearTimeout(timer);
    return true;
  }

  // Returns whether a change only waits for its turn.
  #idle({ outcome, timer, busy }) {
    return !outcome && !timer && !busy;
  }

  // The changes to send now: of the changes of one like the oldest, and of those never sent only the last.
  #heads(user) {
    const heads = new Map();
    for (const state of this.#states.values()) {
      if (state.outcome || state.entry.user !== user) continue;
      const of = isWish(state.entry) ? this.#name({ ...state.entry, key: "" }) : state.name;
      const other = heads.get(of) ?? state;
      const [first, last] = other.entry.at <= state.entry.at ? [other, state] : [state, other];
      if (first !== last) {
        if (this.#still(first) && !first.entry.sent && !first.unread) this.#settle(first, { state: "superseded" });
        if (!first.outcome) last.why = "earlier";
      }
      heads.set(of, first.outcome ? last : first);
    }
    const found = [...heads.values()];
    for (const state of found) if (state.why === "earlier") state.why = undefined;
    const ready = found.filter((state) => state.why !== DENIED && this.#idle(state));
    return ready.sort((one, other) => (one.fails ?? 0) - (other.fails ?? 0));
  }

  // Returns whether a change still waits, by the storage: another tab may have sent or settled it.
  #still(state) {
    if (state.outcome || !state.stored) return !state.outcome;
    const found = this.#load(state.name);
    state.unread = found === undefined;
    if (found) this.#known(state.name, found);
    if (found !== null) return !state.outcome;
    // The storage was cleared, or another process has settled the change. The page that made the change still knows it.
    state.stored = false;
    state.entry = { ...state.entry, sent: state.entry.sent || state.entry.at };
    // The user may have removed it, so the client asks for its receipt and does not send it again.
    state.cleared = !!state.entry.user || isWish(state.entry);
    if (!state.promise) {
      state.outcome = { state: "forgotten" };
      this.#states.delete(state.name);
    }
    return !state.outcome;
  }

  #isOld(state) {
    return state.cleared || (state.entry.sent && !this.#isYoung(state, ASK_AFTER_MS));
  }

  // By the server's time, or by this machine's time if the server's was unknown when the change was sent.
  #isYoung(state, ms) {
    const ageMs = this.#ageMs(state);
    return ageMs > -AHEAD_MS && ageMs < ms;
  }

  // How long ago a change was first sent. If this page sent it, and no answer since had the time, the two clocks may
  // differ: the machine slept, or a clock was set. Which of them is right is unknown, so the longer time is taken.
  #ageMs({ entry: { sent, timed }, began }) {
    if (!began) return (timed ? this.#now() : Date.now()) - sent;
    const tickedMs = ticks() - began.ticks;
    const passedMs = Date.now() - began.at;
    return node() || passedMs < tickedMs || passedMs > SLEEP_MS_MAX ? tickedMs : passedMs;
  }

  // Sends one change. Returns how many ms the lane has to wait.
  async #attempt(lane, pass, state) {
    if (!this.#still(state) || this.#isOld(state)) return 0;
    const before = state.entry;
    const secret = isAnonymous(before) && this.#secret();
    if (secret === undefined) return this.#wait(state, "storage");
    // Without the secret it cannot be sent.
    if (secret === null) return this.#settle(state, { state: "forgotten" }), 0;
    const first = before.sent ? {} : { sent: this.#now(), timed: this.#timed };
    if (!before.sent) state.began = { ticks: ticks(), at: Date.now() };
    const entry = (state.entry = { ...before, ...first, tries: before.tries + 1 });
    if (!this.#put(state)) {
      state.entry = before;
      return this.#wait(state, "storage");
    }
    state.busy = true;
    const answer = await this.#send(entry, pass.token).catch(() => SILENCE);
    state.busy = false;
    const { body, headers } = answer;
    const kind = kindOf(answer);
    const counted = isWish(entry) ? body?.present === entry.present : body?.counted;
    if (kind === "refusal") this.#settle(state, { state: "refused", answer: body });
    else if (kind === "answer" && counted && body.counter === entry.counter && body.id === entry.id) {
      const replayed = headers.get("idempotency-replayed") === "true";
      this.#settle(state, { state: "counted", replayed, answer: body });
      this.#heardTime(headers);
    } else return this.#unsettled(lane, pass, state, answer, before.sent);
    return 0;
  }

  // Handles an answer that does not settle the change. `sent`: when the change was sent before, because a denied one has
  // not counted. Returns how many ms the lane has to wait.
  #unsettled(lane, pass, state, answer, sent) {
    const { status, headers } = answer;
    const kind = kindOf(answer);
    if (state.outcome) return 0;
    if (kind === DENIED) {
      state.entry = { ...state.entry, sent };
      state.cleared || this.#put(state);
      if (status === 401 && pass.user && !pass.fresh) {
        lane.fresh = true;
        lane.ready.unshift(state);
      } else this.#deny(state, status, pass.token);
      return 0;
    }
    // An error of one change delays only this change.
    if (kind !== "busy") return this.#wait(state, UNANSWERED, status);
    this.#hold(state, UNANSWERED, status);
    return Math.min(FORCED_MS_MAX, Math.max(1, 1000 * headers?.get("retry-after") || 0));
  }

  // A server before Tally refuses, as the gateway does without a token or scope, and would refuse again.
  #deny(state, status, token) {
    state.token = token;
    this.#hold(state, DENIED, status);
    state.done?.({ state: DENIED, status });
    const what = `${status} to changes of ${state.entry.counter}`;
    if (this.#warned.has(what)) return;
    this.#warned.add(what);
    console.warn(`tally: ${this.api} answers ${what}. They wait for another user, token or page.`);
  }

  #release(state) {
    Object.assign(state, { why: undefined, status: undefined });
    if (state.promise) state.promise = new Promise((done) => (state.done = done));
  }

  #hold(state, why, status) {
    state.fails = (state.fails ?? 0) + 1;
    Object.assign(state, { why, status });
    this.#say(state);
  }

  // Delays one change.
  #wait(state, why, status) {
    this.#hold(state, why, status);
    state.timer = setTimeout(() => {
      state.timer = undefined;
      this.#run(this.#lane(state.entry));
    }, pause(state.fails));
    return 0;
  }

  #send({ counter, id, key, amount, present, user }, token) {
    const path = `/counters/${counter}/${encodeURIComponent(id)}/`;
    const sent = this.#signed(token);
    // A string is sent as text/plain and needs no preflight, so it is sent even while the visitor leaves.
    if (present == null) return this.#fetch(`${path}increments`, { ...sent, method: "POST", body: JSON.stringify({ key, amount }) });
    const headers = { ...sent.headers, ...(user ? {} : { "tally-secret": this.#secret() }), "idempotency-key": key };
    return this.#fetch(`${path}${user ? "mine" : "anonymous"}`, { method: present ? "PUT" : "DELETE", headers });
  }

  // Asks for the receipts of changes that were sent long ago, as many as fit into one address.
  async #ask(lane, pass, old) {
    const of = operation(old[0].entry);
    const alike = old[0].alone ? [old[0]] : old.filter(({ entry, alone }) => operation(entry) === of && !alone);
    const [part] = packed(alike.map(({ entry: { counter, id, key } }) => query({ target: `${counter}/${id}`, key })));
    const states = alike.slice(0, part.length);
    const path = `/receipts${pass.user ? "/own" : ""}?of=${of}&${part.join("&")}`;
    for (const state of states) state.busy = true;
    const answer = await this.#fetch(path, this.#signed(pass.token)).catch(() => SILENCE);
    const kind = kindOf(answer);
    const left = kind === "answer" ? await this.#judge(states, answer).catch(() => states) : states;
    for (const state of states) state.busy = false;
    if (!left.length) return 0;
    // One of them may be the cause, so each is asked for alone.
    if (states.length > 1 && (kind === "refusal" || kind === "alone")) {
      for (const state of states) state.alone = true;
      return 0;
    }
    // Tally has no receipts of such a change: send it, and Tally answers for the change itself.
    if (kind === "refusal") return this.#renew(states[0]);
    return Math.max(...left.map((state) => this.#unsettled(lane, pass, state, answer, state.entry.sent)));
  }

  // Settles the changes that have a receipt, and lets others be sent again. Returns the changes that still wait.
  async #judge(states, { headers, body: { receipts } }) {
    if (receipts.length !== states.length) return states;
    this.#heardTime(headers);
    const unknown = states.filter((state, at) => {
      const { state: found, answer } = receipts[at];
      if (found === "counted") this.#settle(state, { state: found, replayed: true, answer });
      return !state.outcome;
    });
    // A deploy may declare counters, and change how long receipts live. A counter that is not listed proves nothing.
    if (!unknown.length) return [];
    const health = await this.#fetch("/health");
    const lives = health.body.receipts_live_s;
    // A clock may have been set during the request, here or in another tab.
    this.#heardTime(health.headers);
    return unknown.filter((state) => {
      const lifeMs = lives[state.entry.counter] * 1000;
      if (!(lifeMs > 0)) return true;
      if (!this.#isYoung(state, lifeMs - MARGIN_MS)) this.#settle(state, { state: "doubt" });
      else this.#renew(state);
    });
  }

  // A change that the storage lost is not stored again: another tab may have sent a later change of the same like.
  #renew(state) {
    if (!this.#still(state)) return 0;
    if (state.cleared) return this.#settle(state, { state: isWish(state.entry) ? "superseded" : "forgotten" }), 0;
    state.entry = { ...state.entry, sent: 0 };
    return this.#put(state) ? 0 : this.#wait(state, "storage");
  }

  async #read(path, names, field, sent) {
    const of = names.map(tallyOf);
    const parts = packed(of.map((one) => query({ of: one })));
    const answers = await Promise.allSettled(parts.map((part) => this.#told(path, part, field, sent)));
    if (answers.length && answers.every(({ reason }) => reason)) throw answers[0].reason;
    let at = 0;
    // A part that fails does not fail the others.
    return answers.flatMap(({ value, reason }, index) => {
      const asked = of.slice(at, (at += parts[index].length));
      return value ?? asked.map((one) => unread(one, reason));
    });
  }

  // Returns the list in this field of a successful answer, or throws.
  async #told(path, part, field, sent) {
    const { status, body } = await this.#fetch(`${path}?${part.join("&")}`, sent);
    if (status === 200 && body?.[field]?.every(Boolean)) return body[field];
    throw new Error(`tally: ${path}: ${body?.detail ?? `answered ${status}`}`);
  }

  async #fetch(path, sent) {
    const cut = new AbortController();
    const asked = async () => {
      const answer = await fetch(this.api + path, { keepalive: true, credentials: "omit", signal: cut.signal, ...sent });
      return { status: answer.status, headers: answer.headers, body: parsed(await answer.text()) };
    };
    return timely(asked()).finally(() => cut.abort());
  }

  // Takes the server's time from an answer. A visitor's clock may be wrong, or be set while changes wait.
  #heardTime(headers) {
    const aheadMs = Date.parse(headers.get("date")) - Date.now();
    if (Number.isNaN(aheadMs)) return;
    const differs = Math.abs(aheadMs - this.aheadMs) > 2000;
    if (differs) this.aheadMs = aheadMs;
    if (differs || !this.#timed) tried(() => this.#set(this.prefix, this.aheadMs));
    this.#timed = true;
    for (const state of this.#states.values()) this.#date(state);
  }

  // Stores when a change was sent, in the server's time, before a clock is set.
  #date(state) {
    const { entry, began, outcome, cleared } = state;
    if (outcome || !entry.sent || (entry.timed && !began)) return;
    const sent = this.#now() - this.#ageMs(state);
    state.began = undefined;
    if (entry.timed && Math.abs(sent - entry.sent) < 2000) return;
    state.entry = { ...entry, sent, timed: true };
    cleared || this.#put(state);
  }

  // Returns a token of this user, and not of another user who has signed in since.
  async #tokenOf(user, fresh = false) {
    const token = (await timely((async () => this.token(fresh))())).trim();
    // A token that a header cannot hold would look like a failure of the network.
    if (subject(token) !== user || !/^[!-~]+$/.test(token)) throw new Error("tally: `token` gives no token of the user");
    return token;
  }

  #signed(token) {
    return { headers: token ? { authorization: `Bearer ${token}` } : {} };
  }
}
