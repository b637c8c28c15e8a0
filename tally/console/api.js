/** Requests to Tally: the token, ETags, problem documents in plain words, and a lost connection that comes back. */

const ROOT = new URL("../", import.meta.url); // this file is /console/api.js
const REQUEST_S_MAX = 15; // API Gateway answers within 30; a person has given up by then
const AGAIN_S = [1, 2, 4, 8, 15]; // between two looks whether the connection is back
const WORDS = {
  400: "Tally rejected this request.",
  401: "Sign in to see this.",
  403: "You may not read this: the token lacks the scope tally/read.",
  404: "Not found.",
  413: "The request is too large.",
  429: "Too many requests at once. The page tries again.",
  503: "Tally is busy. The page tries again.",
};

/** A request that was not answered as hoped. `words`: for people. `lost`: no answer at all. `refused`: sign in. */
export class Failure extends Error {
  constructor(words, { status = 0, lost = false } = {}) {
    super(words);
    Object.assign(this, { words, status, lost, refused: status === 401 || status === 403 });
  }

  /** From a status and a problem document, if there is one. API Gateway's own refusals have none. */
  static of(status, problem) {
    const detail = typeof problem?.detail === "string" ? problem.detail : "";
    const own = WORDS[status] ?? (status >= 500 ? `Tally failed (${status}).` : `Tally answered ${status}.`);
    const words =
      !detail || status === 401 || status === 429 || status === 503
        ? own
        : status === 400
          ? `Tally rejected this request: ${detail}`
          : detail;
    return new Failure(/[.!?]$/.test(words) ? words : `${words}.`, { status });
  }
}

/** The API of this stack. Events: `again` (load everything again), `connection` (lost, or back), `refused` (401, 403). */
export class Api extends EventTarget {
  lost = false;
  seenAt = null; // when Tally last answered, epoch seconds

  /** `token()` gives the token, or nothing. It is kept by the caller, in memory only. */
  constructor(token) {
    super();
    this.token = token;
    addEventListener("online", () => this.lost && this.#look(0));
    addEventListener("offline", () => this.#lose());
  }

  /** The body of `GET path`. Query values may be lists; null and undefined are left out. Throws Failure. */
  async get(path, query = {}, signal) {
    return (await this.fresh(path, query, undefined, signal)).body;
  }

  /** The body of `GET path/any`, of any counter; without a token of `GET path`, if it is `open` to anyone. */
  async any(path, query, signal, open = true) {
    return this.get(this.token() || !open ? `${path}/any` : path, query, signal);
  }

  /** `{body, tag}`; `{body: null, tag}` if nothing has changed since the answer with this ETag. Throws Failure. */
  async fresh(path, query = {}, tag, signal) {
    const url = new URL(path.replace(/^\//, ""), ROOT);
    for (const [name, value] of Object.entries(query))
      for (const one of [value].flat()) if (one !== null && one !== undefined) url.searchParams.append(name, one);
    const answer = await this.#send(url, tag, signal);
    if (answer.status === 304) return { body: null, tag };
    const body = await answer.json().catch(() => null);
    if (answer.ok && body !== null) return { body, tag: answer.headers.get("etag") };
    const failure = Failure.of(answer.status === 403 && !this.token() ? 401 : answer.status, body);
    if (failure.refused) this.dispatchEvent(new CustomEvent("refused", { detail: failure }));
    throw failure;
  }

  /** Load everything again: after a sign-in, or when the connection is back. */
  again() {
    this.dispatchEvent(new Event("again"));
  }

  async #send(url, tag, signal) {
    const headers = {};
    const token = this.token();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (tag) headers["If-None-Match"] = tag;
    const limit = AbortSignal.timeout(REQUEST_S_MAX * 1000);
    try {
      const answer = await fetch(url, {
        headers,
        cache: "no-store",
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
      });
      this.#seen();
      return answer;
    } catch (error) {
      if (signal?.aborted) throw error;
      this.#lose();
      throw new Failure("No connection to Tally.", { lost: true });
    }
  }

  #seen() {
    this.seenAt = Date.now() / 1000;
    if (!this.lost) return;
    this.lost = false;
    this.dispatchEvent(new Event("connection"));
    this.again();
  }

  #lose() {
    if (this.lost) return;
    this.lost = true;
    this.dispatchEvent(new Event("connection"));
    this.#look(0);
  }

  /** Look until somebody answers. Any answer will do: the numbers are loaded after that. */
  #look(times) {
    clearTimeout(this.looking);
    this.looking = setTimeout(
      async () => {
        try {
          await fetch(new URL("health", ROOT), { cache: "no-store", signal: AbortSignal.timeout(5000) });
          this.#seen();
        } catch {
          this.#look(times + 1);
        }
      },
      1000 * AGAIN_S[Math.min(times, AGAIN_S.length - 1)],
    );
  }
}
