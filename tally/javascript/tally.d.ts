/** Counts each change exactly once, from the button to the number. docs/browser.md has the guarantees and limits. */

/** A storage for changes that wait: the members of `localStorage` that the client uses. A call stores before it returns. */
export interface Store {
  readonly length: number;
  key(at: number): string | null;
  getItem(name: string): string | null;
  setItem(name: string, text: string): void;
  removeItem(name: string): void;
}

export interface Options {
  /** The address of your API, as `https://api.example.com`. Default: the address that served this module. */
  api?: string;
  /** Returns the `sub` of the user who is signed in; nothing, or an exception, if no user is signed in. */
  user?: () => string | number | bigint | null | undefined;
  /** Returns a token of the user who is signed in. `fresh`: the API refused the last token (401). If this takes longer than
   * 35 s, the changes wait (`no-token`), and the client asks again. */
  token?: (fresh: boolean) => string | null | undefined | Promise<string | null | undefined>;
  /** Where changes wait. Default: `localStorage`; in Node, the memory. The module `node.js` stores changes in a folder. */
  storage?: Store;
}

/** An id, of a type that databases return. */
export type Id = string | number | bigint;

/** Returns the id of a path, an address, or any text: `/posts/x/` becomes `~2Fposts~2Fx~2F`. An id stays as it is. */
export declare const idOf: (name: Id) => string;

/** Returns `counter:id` for `counter:text`: the id is `idOf(text)`. If the counter counts pages, the text stays as it is. */
export declare const tallyOf: (name: string) => string;

/** Parses JSON. A whole number beyond 2^53 becomes a BigInt. */
export declare const fromJson: (text: string) => unknown;

/** Returns whether the ids of a counter are addresses of pages, which Tally normalises. */
export declare const isOfPages: (counter: string) => boolean;

/** A change that waits for Tally's answer. */
export interface Entry {
  readonly counter: string;
  readonly id: string;
  /** The idempotency key: the same key never counts twice. */
  readonly key: string;
  /** The amount of an increment; absent: the counter's own step. */
  readonly amount?: number;
  /** Whether a like is to be counted; absent: the change is an increment. */
  readonly present?: boolean;
  /** The user who made the change. The change is sent only with a token of this user. Absent: the change is anonymous.
   * An anonymous like is sent with the browser's own secret. */
  readonly user?: string;
  /** When the change was made, in ms since 1970. */
  readonly at: number;
  /** When the change was first sent, in ms since 1970; 0: never. */
  readonly sent: number;
  /** How often the change was sent. */
  readonly tries: number;
  /** Why the change still waits, as far as this page knows; absent: the client is sending it, or sends it soon. */
  readonly why?: Why;
  /** The HTTP status of the last answer; absent: no answer. */
  readonly status?: number;
}

/** Why a change waits.
 *
 * `unanswered`: Tally did not answer; the client sends the change again. Also: the change was sent long ago, and
 * `GET /health` does not say how long receipts of the counter live. The receipt may have expired, so another send could
 * count twice, and the client only asks for the receipt again.
 * `offline`: the browser is offline; the client checks the network in pauses of up to 30 s.
 * `denied`: a server in front of Tally refused the change, as the gateway does with 401 or 403 without a token or a scope.
 * The client sends the change again on another page, after `retry()`, when the browser comes online, or with another token.
 * `signed-out`: the user of the change is not signed in. `no-token`: `token` does not return a token of this user.
 * `earlier`: an earlier change of the same like has no answer. `storage`: the storage cannot record an attempt.
 */
export type Why = "unanswered" | "offline" | "denied" | "signed-out" | "no-token" | "earlier" | "storage";

/** A problem document (RFC 9457). Tally's `type` begins with `urn:problem-type:tally:`; `about:blank`: no answer. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly [member: string]: unknown;
}

/** The outcome of a change.
 *
 * `counted`: Tally counted the change; `replayed`: an earlier attempt had counted. `answer`: the answer of the API.
 * `refused`: Tally refused the change, for the reason in `answer`. The change did not count, and is not sent again.
 * `superseded`: the change of a like did not count, because a later change replaced it, or the storage lost it.
 * `doubt`: the change was sent and has no answer, and its receipt may have expired. Nobody knows whether it counted.
 * `forgotten`: `forget()` removed the change, or the storage lost a signed increment or the secret of an anonymous like.
 * `denied`: the change still waits, as `Why` says. The event `change` reports its outcome later.
 */
export type Outcome =
  | { readonly state: "counted"; readonly replayed: boolean; readonly answer: Readonly<Record<string, unknown>> }
  | { readonly state: "refused"; readonly answer: Problem }
  | { readonly state: "denied"; readonly status: number }
  | { readonly state: "superseded" | "doubt" | "forgotten" };

/** One number, or why it cannot be read. `value`: a BigInt if the number is beyond 2^53, because a Number is not exact
 * there. The same holds for every whole number of an answer. `as_of`: the number includes every change before this time,
 * in seconds since 1970. `limit`, `left`: of a counter with a ceiling or a floor. `over`: the number is beyond its limit.
 * `resets_at`: the end of the period, in seconds since 1970. */
export type Value =
  | {
      readonly counter: string;
      readonly id: string;
      readonly value: number | bigint;
      readonly as_of?: number | null;
      readonly limit?: number | bigint;
      readonly left?: number | bigint;
      readonly over?: true;
      readonly resets_at?: number;
    }
  | { readonly counter: string; readonly id: string; readonly error: Problem };

/** Whether a like counts a user or this browser, or why this cannot be read. `child`: the user; absent: this browser. */
export type Mine =
  | { readonly counter: string; readonly id: string; readonly child?: string; readonly present: boolean }
  | { readonly counter: string; readonly id: string; readonly error: Problem };

/** The event `change`, for the changes of every tab of the origin. A caller made a change, another tab sent it, an attempt
 * did not settle it (`why` says why), or it has ended. Only a change that has ended has an `outcome`. */
export type ChangeEvent = CustomEvent<{ readonly entry: Entry; readonly outcome?: Outcome }>;

/** The client. Make one for each page, or for each process. The client also sends the changes that closed pages left in
 * the storage. Clients of one page share the changes that wait, as tabs do. */
export class Tally extends EventTarget {
  /** Throws TypeError if `api` is not an http or https address. */
  constructor(options?: Options);
  /** The address of the API, without a slash at the end. */
  readonly api: string;

  /** Adds to a number. The change is stored before this returns. The promise resolves with the outcome.
   *
   * `amount`: by how much; leave it out for a counter with a fixed step. `key`: your own name for the change, such as the
   * id of a playback; the same key counts once, from any number of tabs and processes. The key of a change that is not
   * `signed` needs at least 22 characters. If a change with the same key and another amount waits, the outcome is
   * `refused` at once, as Tally would answer. `signed`: send the user's token, for a counter that is not public. Ids, keys
   * and amounts may be whole numbers and BigInts. Throws TypeError for a malformed counter, id, key or amount, and for a
   * user with a lone surrogate. Throws Error if the change is `signed` and no user is signed in.
   */
  increment(
    counter: string,
    id: Id,
    options?: { amount?: number | bigint; key?: Id; signed?: boolean },
  ): Promise<Outcome>;

  /** Puts a like, or deletes it (`present` false). The last call wins. Throws as `increment` does.
   *
   * `anonymous`: if no user is signed in, count this browser, by a secret in its storage. A user who signs in takes over
   * the browser's likes: the client first puts the user's like, then deletes the browser's like. Throws Error if no user
   * is signed in, and `anonymous` is not true or the storage does not keep the secret.
   */
  like(counter: string, id: Id, present?: boolean, options?: { anonymous?: boolean }): Promise<Outcome>;

  /** Returns `counter:id`, with the id as answers and entries have it. */
  of(counter: string, id: Id): string;

  /** Reads public numbers, such as `plays:9f3a`, and returns them in the same order. A number may be as old as its
   * counter's `max_age_s`; `fresh` skips the browser's cache. Many numbers are read in parts. If a part has no answer,
   * its numbers have an `error`. Rejects if no part has an answer. */
  values(names: readonly string[], options?: { fresh?: boolean }): Promise<Value[]>;

  /** Reads which likes, such as `hearts:article-1`, count the user who is signed in, or else this browser. Rejects as
   * `values` does, and if no user is signed in and this browser has no likes. */
  mine(names: readonly string[]): Promise<Mine[]>;

  /** Returns the changes that wait, also the changes of other tabs, in the order in which they were made. */
  waiting(): Entry[];

  /** Sends waiting changes at once, also denied changes, as the client does when the browser comes online. */
  retry(): void;

  /** Removes the changes of a user that still wait, for a sign-out on a shared machine. */
  forget(user: Id): void;

  /** Deletes all anonymous likes of this browser, and then its secret. If the page closes first, the next page
   * continues. Resolves when all likes are deleted. */
  forget(): Promise<Outcome[]>;

  addEventListener(type: "change", listener: (event: ChangeEvent) => void, options?: AddEventListenerOptions): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}
