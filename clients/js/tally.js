// Counts each change exactly once, from the button to the number. tally.d.ts says what callers see, docs/javascript.md
// what holds and why. Comments have lines of their own: the API serves this file without them.

// An answer later than this is none. API Gateway gives up after 30 s.
const TIMEOUT_MS = 35e3;
// Who retries waits at most this long, and at most FORCED_MS_MAX if the server asks for more.
const PAUSE_MS_MAX = 30e3;
const FORCED_MS_MAX = 300e3;
const TOGETHER_MAX = 4;
// The API takes twice as many, and 10 KB of address.
const ASKED_MAX = 50;
// A change that was first sent longer ago is asked for, before it is sent again. A receipt lives for a day or more.
const ASK_AFTER_MS = 3600e3;
// Requests take time, and clocks are set: this much before the end of its life nobody relies on a receipt.
const MARGIN_MS = 3600e3;
// A Date has whole seconds, so what was just sent may seem to lie ahead.
const AHEAD_MS = 60e3;
const NAME = /^[\w.:~@-]{1,128}$/;
const PROBLEM = "urn:problem-type:tally:";

const NO_TOKEN = new Error("tally: `token` gives no token of the user");

const pause = (tries) => Math.min(PAUSE_MS_MAX, 500 * 2 ** tries) * (0.5 + Math.random() / 2);
const newKey = () => crypto.getRandomValues(new Uint8Array(16)).join("-");
const isWish = ({ present }) => present != null;
const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {}
};

const subject = (token) => {
  const bytes = atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)))).sub;
};

export class Tally extends EventTarget {
  // What this page has made and nobody has answered, by name: { entry, stored, promise, done }.
  #made = new Map();
  // The names of changes that wait for a timer of their own, and the timer that all changes wait for.
  #later = new Map();
  #paused = 0;
  #fails = 0;
  #running = false;
  #again = false;
  #lives;

  constructor({ api = new URL("..", import.meta.url).href, user = () => {}, token = () => {}, storage } = {}) {
    super();
    if (!/^https?:/.test(api)) throw new TypeError(`tally: api must be an address, not ${api}`);
    this.api = api.replace(/\/+$/, "");
    this.user = user;
    this.token = token;
    this.prefix = `tally1 ${this.api} `;
    try {
      this.storage = storage ?? (document && localStorage);
    } catch {}
    this.aheadMs = this.#get(this.prefix) ?? 0;
    const retry = () => this.retry();
    globalThis.addEventListener?.("online", retry);
    // Also when a page was prerendered and is shown, or comes back from the back/forward cache.
    globalThis.document?.addEventListener("visibilitychange", retry);
    // Another tab has stored a change, or says how one ended; without a name, the storage was cleared.
    globalThis.addEventListener?.("storage", ({ key, newValue }) => {
      if (key && !key.startsWith(this.prefix)) return;
      const entry = parsed(newValue);
      if (entry?.outcome) this.#settle(entry, entry.outcome);
      else if (entry?.key) this.#say(entry);
      if (!key || entry?.sent === 0) this.#run();
    });
    this.#run();
  }

  increment(counter, id, { amount, key, signed } = {}) {
    return this.#add({ counter, id, amount, user: signed ? this.#signedIn() : undefined }, key);
  }

  like(counter, id, present = true) {
    const last = this.waiting().at(-1)?.at ?? 0;
    return this.#add({ counter, id, present: !!present, user: this.#signedIn() }, undefined, last + 1);
  }

  values(of, { fresh = false } = {}) {
    return this.#read("/tallies", of, "tallies", fresh ? { cache: "reload" } : {});
  }

  async mine(of) {
    return this.#read("/mine", of, "mine", { headers: await this.#signed(this.#signedIn()) });
  }

  waiting() {
    const found = this.#stored();
    for (const [name, { entry }] of this.#made) found.has(name) || found.set(name, entry);
    return [...found.values()].filter((entry) => !entry.outcome).sort((one, other) => one.at - other.at);
  }

  retry() {
    clearTimeout(this.#paused);
    this.#paused = 0;
    this.#later.forEach(clearTimeout);
    this.#later.clear();
    this.#run();
  }

  forget(user) {
    for (const entry of this.waiting()) if (entry.user === user) this.#settle(entry, { state: "forgotten" });
  }

  #signedIn() {
    const user = this.user();
    if (!user) throw new Error("tally: nobody is signed in");
    return user;
  }

  // Stored before anything is sent, in the task of the click. `after`: the least place in the order.
  #add(change, key = newKey(), after = 0) {
    for (const name of [change.counter, change.id])
      if (!NAME.test(name ?? "")) throw new TypeError(`tally: ${name} is no counter or id`);
    const entry = { ...change, key, at: Math.max(this.#now(), after), sent: 0, tries: 0 };
    const name = this.#name(entry);
    const made = this.#made.get(name) ?? {};
    if (made.promise) return made.promise;
    made.promise = new Promise((done) => (made.done = done));
    this.#made.set(name, made);
    // A key of the caller's own may wait here already: that one may have been sent.
    this.#put(this.#get(name) ?? entry);
    this.#say(entry);
    this.#run();
    return made.promise;
  }

  #name({ user = "", counter, id, key }) {
    return this.prefix + [user, counter, id, key].join(" ");
  }

  #now() {
    return Date.now() + this.aheadMs;
  }

  #put(entry) {
    const name = this.#name(entry);
    const made = this.#made.get(name) ?? {};
    made.entry = entry;
    try {
      this.storage.setItem(name, JSON.stringify(entry));
      made.stored = true;
    } catch {
      made.stored = false;
    }
  }

  #get(name) {
    try {
      return parsed(this.storage.getItem(name));
    } catch {}
  }

  #stored() {
    const found = new Map();
    try {
      for (let at = this.storage.length; at--; ) {
        const name = this.storage.key(at);
        // The prefix alone is the clock. Another tab may have removed an entry since.
        if (name?.startsWith(this.prefix) && name !== this.prefix) {
          const entry = this.#get(name);
          entry && found.set(name, entry);
        }
      }
    } catch {}
    return found;
  }

  #say(entry, outcome) {
    this.dispatchEvent(new CustomEvent("change", { detail: { entry, outcome } }));
  }

  #settle(entry, outcome) {
    const name = this.#name(entry);
    // Other tabs learn from this how it ended: a removal alone does not say it.
    if (!entry.outcome) this.#put({ ...entry, outcome });
    try {
      this.storage.removeItem(name);
    } catch {}
    this.#made.get(name)?.done(outcome);
    this.#made.delete(name);
    this.#say(entry, outcome);
    return 0;
  }

  // One tab sends at a time. A second sender would do no harm, but for the requests.
  async #run() {
    this.#again = true;
    if (this.#running) return;
    this.#running = true;
    const round = () => this.#round();
    const locks = globalThis.navigator?.locks;
    try {
      while (this.#again) {
        this.#again = false;
        // A sandboxed page may not lock.
        await (locks ? locks.request(this.prefix, round).catch(round) : round());
      }
    } finally {
      this.#running = false;
    }
  }

  async #round() {
    for (;;) {
      if (this.#paused || globalThis.navigator?.onLine === false || globalThis.document?.prerendering) return;
      const ready = this.#ready();
      if (!ready.length) return;
      const pauses = await Promise.all(ready.map((entry) => this.#attempt(entry)));
      const longest = Math.max(...pauses);
      if (longest) {
        this.#fails++;
        this.#paused = setTimeout(() => this.retry(), Math.max(longest, pause(this.#fails)));
      } else this.#fails = 0;
    }
  }

  // What to send now: of the wishes for one thing the oldest, and of those that were never sent the last.
  #ready() {
    const stored = this.#stored();
    for (const [name, made] of this.#made) {
      if (stored.has(name)) continue;
      // It is gone: somebody cleared the storage, or another tab has settled it. A count is safe to send again. A wish
      // is not: a later one may have been sent.
      if (made.stored && isWish(made.entry)) this.#settle(made.entry, { state: "superseded" });
      else stored.set(name, made.stored ? { ...made.entry, sent: made.entry.sent || made.entry.at } : made.entry);
    }
    const heads = new Map();
    for (const entry of [...stored.values()].sort((one, other) => one.at - other.at)) {
      const of = this.#name(isWish(entry) ? { ...entry, key: "" } : entry);
      const head = heads.get(of);
      // A tab has died after it wrote how this one ended.
      if (entry.outcome) this.#settle(entry, entry.outcome);
      else if (!head) heads.set(of, entry);
      else if (!head.sent) {
        this.#settle(head, { state: "superseded" });
        heads.set(of, entry);
      }
    }
    const user = this.user();
    return [...heads.values()]
      .filter((entry) => !this.#later.has(this.#name(entry)) && (!entry.user || entry.user === user))
      .sort((one, other) => one.tries - other.tries)
      .slice(0, this.#fails ? 1 : TOGETHER_MAX);
  }

  // Sends one change. Returns for how many ms all changes have to wait; 0: they need not.
  async #attempt(entry) {
    try {
      let signed = await this.#signed(entry.user);
      const ageMs = this.#now() - entry.sent;
      if (entry.sent && !(ageMs > -AHEAD_MS && ageMs < ASK_AFTER_MS)) {
        const asked = await this.#ask(entry, signed);
        if (asked) return this.#settle(entry, asked);
        entry.sent = 0;
      }
      entry.sent ||= this.#now();
      entry.tries++;
      this.#put(entry);
      let answer = await this.#send(entry, signed);
      if (entry.user && answer.status === 401) answer = await this.#send(entry, await this.#signed(entry.user, true));
      const { status, body, headers } = answer;
      const counted = isWish(entry) ? body?.present === entry.present : body?.counted;
      if (status < 300 && counted && body.counter === entry.counter && body.id === entry.id) {
        this.#heardTime(headers);
        const replayed = headers.get("idempotency-replayed") === "true";
        return this.#settle(entry, { state: "counted", replayed, answer: body });
      }
      // A problem document of Tally's, and not somebody's between here and there.
      if (status > 399 && status < 500 && status !== 401 && String(body?.type).startsWith(PROBLEM))
        return this.#settle(entry, { state: "refused", answer: body });
      // What one change alone meets, one change alone waits for.
      if (status === 500 || (status > 399 && status < 429)) return this.#wait(entry);
      return Math.min(FORCED_MS_MAX, 1 + 1000 * (Number(headers.get("retry-after")) || 0));
    } catch (error) {
      return error === NO_TOKEN ? this.#wait(entry) : 1;
    }
  }

  #wait(entry) {
    const name = this.#name(entry);
    const again = () => this.#run(this.#later.delete(name));
    this.#later.set(name, setTimeout(again, pause(entry.tries || 4)));
    return 0;
  }

  #send({ counter, id, key, amount, present }, signed) {
    const path = `/counters/${counter}/${encodeURIComponent(id)}/`;
    // A string goes as text/plain, and needs no preflight: it leaves even as the visitor leaves.
    return present == null
      ? this.#fetch(`${path}increments`, { method: "POST", body: JSON.stringify({ key, amount }), headers: signed })
      : this.#fetch(`${path}mine`, { method: present ? "PUT" : "DELETE", headers: { ...signed, "idempotency-key": key } });
  }

  // How a change that was sent long ago ended; undefined if it did not count, and may be sent again.
  async #ask({ counter, id, key, present, user, sent }, headers) {
    const of = present == null ? "increment" : present ? "put_mine" : "delete_mine";
    const query = new URLSearchParams({ of, target: `${counter}/${id}`, key });
    this.#lives ??= (await this.#told("/health", "receipts_live_s")).said;
    const { said, heard } = await this.#told(`/receipts${user ? "/own" : ""}?${query}`, "receipts", { headers });
    const [{ state, answer }] = said;
    this.#heardTime(heard);
    if (state === "counted") return { state, replayed: true, answer };
    const ageMs = this.#now() - sent;
    if (!(ageMs > -AHEAD_MS && ageMs < this.#lives[counter] * 1000 - MARGIN_MS)) return { state: "doubt" };
  }

  async #read(path, of, field, sent) {
    const said = [];
    for (let at = 0; at < of.length; at += ASKED_MAX) {
      const query = new URLSearchParams(of.slice(at, at + ASKED_MAX).map((one) => ["of", one]));
      said.push(...(await this.#told(`${path}?${query}`, field, sent)).said);
    }
    return said;
  }

  // What a successful answer has in this field; else an error.
  async #told(path, field, sent) {
    const { status, body, headers } = await this.#fetch(path, sent);
    if (status !== 200 || !body?.[field]) throw new Error(`tally: ${path}: ${body?.detail ?? `answered ${status}`}`);
    return { said: body[field], heard: headers };
  }

  async #fetch(path, sent) {
    const cut = new AbortController();
    const timer = setTimeout(() => cut.abort(), TIMEOUT_MS);
    try {
      const answer = await fetch(this.api + path, { keepalive: true, credentials: "omit", signal: cut.signal, ...sent });
      return { status: answer.status, headers: answer.headers, body: parsed(await answer.text()) };
    } finally {
      clearTimeout(timer);
    }
  }

  // The server's time, which pages may read. A visitor's clock may be wrong, or be set while changes wait.
  #heardTime(headers) {
    const aheadMs = Date.parse(headers.get("date")) - Date.now();
    if (!(Math.abs(aheadMs - this.aheadMs) > 2000)) return;
    this.aheadMs = aheadMs;
    try {
      this.storage.setItem(this.prefix, aheadMs);
    } catch {}
  }

  // A token of this user's, and of nobody else's who has signed in since.
  async #signed(user, fresh = false) {
    if (!user) return {};
    try {
      const token = await this.token(fresh);
      if (subject(token) === user) return { authorization: `Bearer ${token}` };
    } catch {}
    throw NO_TOKEN;
  }
}
