/** Sends requests to Tally with the token and ETags. Puts errors into words, and notices a lost connection. */

const ROOT = new URL("../", import.meta.url); // this file is /console/api.js
const REQUEST_S_MAX = 15; // shorter than API Gateway's 30 s, because nobody waits that long
const PAUSES_S = [1, 2, 4, 8, 15]; // between two checks whether the connection is back
const WORDS = {
  400: "Tally rejected this request.",
  401: "Sign in to see this.",
  403: "You may not read this: the token lacks the scope tally/read.",
  404: "Not found.",
  413: "The request is too large.",
  429: "Too many requests at once. The page tries again.",
  503: "Tally is busy. The page tries again.",
};

/** A failed request. `words`: the error for people. `lost`: no answer came, and `status` is 0. `refused`: sign in. */
export class Failure extends Error {
  constructor(words, { status = 0, lost = false } = {}) {
    super(words);
    Object.assign(this, { words, status, lost, refused: status === 401 || status === 403 });
  }

  /** Returns the failure for a status and a problem document. API Gateway's own errors have no document. */
  static of(status, problem) {
    const detail = typeof problem?.detail === "string" ? problem.detail : "";
    const standard = WORDS[status] ?? (status >= 500 ? `Tally failed (${status}).` : `Tally answered ${status}.`);
    const words =
      !detail || status === 401 || status === 429 || status === 503
        ? standard
        : status === 400
          ? `Tally rejected this request: ${detail}`
          : detail;
    return new Failure(/[.!?]$/.test(words) ? words : `${words}.`, { status });
  }
}

/** The API of this stack. Events: `reload` (pages load their data), `connection` (lost or back), `refused` (401, 403). */
export class Api extends EventTarget {
  lost = false;
  answeredAt = null; // when Tally last answered, epoch seconds

  /** `token()` returns the token, or nothing. The caller keeps the token in memory only. */
  constructor(token) {
    super();
    this.token = token;
    addEventListener("online", () => this.lost && this.#check(0));
    addEventListener("offline", () => this.#lose());
  }

  /** Returns the body of `GET path`. Query values may be lists; null and undefined are left out. Throws Failure. */
  async get(path, query = {}, signal) {
    return (await this.getWithTag(path, query, undefined, signal)).body;
  }

  /**
   * Returns numbers of a counter. `path` has only counters that anyone may read (`isPublic`). `path/any` has every
   * counter, and needs a token with the scope tally/read. Without a token it fails, and the console asks for a sign-in.
   */
  async any(path, query, signal, isPublic = true) {
    return this.get(this.token() || !isPublic ? `${path}/any` : path, query, signal);
  }

  /** Returns `{body, tag}`; `{body: null, tag}` if the answer has the ETag `tag`. Throws Failure. */
  async getWithTag(path, query = {}, tag, signal) {
    const url = new URL(path.replace(/^\//, ""), ROOT);
    for (const [name, value] of Object.entries(query))
      for (const text of [value].flat()) if (text !== null && text !== undefined) url.searchParams.append(name, text);
    const answer = await this.#send(url, tag, signal);
    if (answer.status === 304) return { body: null, tag };
    const body = await answer.json().catch(() => null);
    if (answer.ok && body !== null) return { body, tag: answer.headers.get("etag") };
    // Without a token, a 403 says that only users may read this counter: a sign-in helps, as after a 401.
    const failure = Failure.of(answer.status === 403 && !this.token() ? 401 : answer.status, body);
    if (failure.refused) this.dispatchEvent(new CustomEvent("refused", { detail: failure }));
    throw failure;
  }

  /** Makes pages load their data: after a sign-in, or when the connection is back. */
  reload() {
    this.dispatchEvent(new Event("reload"));
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
      this.#noteAnswer();
      return answer;
    } catch (error) {
      if (signal?.aborted) throw error;
      this.#lose();
      throw new Failure("No connection to Tally.", { lost: true });
    }
  }

  #noteAnswer() {
    this.answeredAt = Date.now() / 1000;
    if (!this.lost) return;
    this.lost = false;
    this.dispatchEvent(new Event("connection"));
    this.reload();
  }

  #lose() {
    if (this.lost) return;
    this.lost = true;
    this.dispatchEvent(new Event("connection"));
    this.#check(0);
  }

  /** Asks for /health until any answer comes. The pages then load their data. `times`: the checks without an answer. */
  #check(times) {
    clearTimeout(this.checkTimer);
    this.checkTimer = setTimeout(
      async () => {
        try {
          await fetch(new URL("health", ROOT), { cache: "no-store", signal: AbortSignal.timeout(5000) });
          this.#noteAnswer();
        } catch {
          this.#check(times + 1);
        }
      },
      1000 * PAUSES_S[Math.min(times, PAUSES_S.length - 1)],
    );
  }
}
