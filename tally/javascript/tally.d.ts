/** Counts each change exactly once, from the button to the number. docs/browser.md says what holds. */

/** Where changes wait: the part of `localStorage` that the client uses. It must store before it returns. */
export interface Store {
  readonly length: number;
  key(at: number): string | null;
  getItem(name: string): string | null;
  setItem(name: string, text: string): void;
  removeItem(name: string): void;
}

export interface Options {
  /** The address of your API, as `https://api.example.com`. Without it: where this module was loaded from. */
  api?: string;
  /** Who is signed in: the `sub` of their tokens; nothing, or an exception, if nobody is. */
  user?: () => string | number | bigint | null | undefined;
  /** A token of that user, within 35 s. `fresh`: the last one was refused (401). */
  token?: (fresh: boolean) => string | null | undefined | Promise<string | null | undefined>;
  /** Where changes wait. Without it: `localStorage`; in Node, the memory. `node.js` has a folder. */
  storage?: Store;
}

/** As databases give them. */
export type Id = string | number | bigint;

/** The id of a path, an address, or text of any script: `/posts/x/` is `~2Fposts~2Fx~2F`. An id is itself. */
export declare const idOf: (name: Id) => string;

/** `counter:id`, with the id as `idOf` spells it. An address of a counter of pages is itself. */
export declare const tallyOf: (of: string) => string;

/** JSON, in which a whole number beyond 2^53 is a BigInt. */
export declare const fromJson: (text: string) => unknown;

/** Whether a counter counts pages, whose addresses Tally normalises. */
export declare const isOfPages: (counter: string) => boolean;

/** A change that waits for Tally's answer. */
export interface Entry {
  readonly counter: string;
  readonly id: string;
  /** The change's own name: the same key never counts twice. */
  readonly key: string;
  /** Of an increment: by how much; absent: by the counter's own step. */
  readonly amount?: number;
  /** Of a like: whether the user wants to be counted; absent: it is an increment. */
  readonly present?: boolean;
  /** Whose change it is, and with whose token alone it is sent; absent: it is anonymous. An anonymous like goes with the
   * browser's own secret. */
  readonly user?: string;
  /** When it was made, in ms since 1970. */
  readonly at: number;
  /** When it was first sent, in ms since 1970; 0: never. */
  readonly sent: number;
  /** How often it was sent. */
  readonly tries: number;
  /** Why it still waits, as far as this page knows; absent: it is being sent, or has its turn soon. */
  readonly why?: Why;
  /** The HTTP status of the last answer, if somebody answered. */
  readonly status?: number;
}

/** Why a change waits.
 *
 * `unanswered`: no answer of Tally's came; it is sent again. Also: it was sent long ago, and `GET /health` does not say
 * how long receipts of its counter live; it is asked for again. `offline`: the browser says so; the client tries seldom.
 * `denied`: somebody before Tally refused it, as the gateway does with 401 or 403 without a token or a scope. It is sent
 * again by another page, after `retry()`, when the browser comes online, or with another token if it has a user.
 * `signed-out`: its user is not signed in. `no-token`: `token` gives none of that user's. `earlier`: an earlier wish for
 * the same thing is not answered. `storage`: the storage cannot note that it is sent.
 */
export type Why = "unanswered" | "offline" | "denied" | "signed-out" | "no-token" | "earlier" | "storage";

/** RFC 9457, as Tally refuses: `type` begins with `urn:problem-type:tally:`; `about:blank` where no answer came. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly [member: string]: unknown;
}

/** What became of a change.
 *
 * `counted`: Tally said so; `replayed` if it had counted it before, and `answer` is what the API answers.
 * `refused`: Tally said why. It did not count, and is not sent again.
 * `superseded`: a like that was never sent, because the user changed their mind.
 * `doubt`: it was sent, no answer came, and the receipt may be gone. Nobody can tell whether it counted.
 * `forgotten`: `forget()` took it away.
 * `denied`: it has not ended, and waits as `Why` says; the event `change` says how it ends.
 */
export type Outcome =
  | { readonly state: "counted"; readonly replayed: boolean; readonly answer: Readonly<Record<string, unknown>> }
  | { readonly state: "refused"; readonly answer: Problem }
  | { readonly state: "denied"; readonly status: number }
  | { readonly state: "superseded" | "doubt" | "forgotten" };

/** One number, or why it cannot be read. `value`: a BigInt if it is beyond 2^53, where a Number is not exact; so are whole
 * numbers of that size in every other answer. `as_of`: it holds every change before, in seconds since 1970. A counter with
 * a ceiling or a floor says its `limit` and what is `left`; beyond it `over`; and with periods when this one ends, in seconds since 1970. */
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

/** Whether a user, or this browser, is counted, or why that cannot be read. `child`: the user. */
export type Mine =
  | { readonly counter: string; readonly id: string; readonly child?: string; readonly present: boolean }
  | { readonly counter: string; readonly id: string; readonly error: Problem };

/** A change was made, sent, or waits for another reason (`outcome` is absent), or ended; in this tab or in another one of
 * the same origin. */
export type ChangeEvent = CustomEvent<{ readonly entry: Entry; readonly outcome?: Outcome }>;

/** The client. Make one for each page, or for each process. It sends what earlier ones left. Clients of one page share
 * what waits, as tabs do. */
export class Tally extends EventTarget {
  /** Throws TypeError if `api` is no http or https address. */
  constructor(options?: Options);
  /** The address of the API, without a slash at its end. */
  readonly api: string;

  /** Move a counter. The change is stored before this returns, and the promise resolves when Tally has answered.
   *
   * `amount`: by how much; leave it out for a counter with a fixed step. `key`: your own name for the event, such as the
   * id of a playback; the same key counts once, from however many tabs and processes. A change of a stranger needs a key
   * of at least 22 characters; a key that waits with another amount is refused at once, as Tally would refuse it.
   * `signed`: send it with the user's token, for a counter that not anyone may change. Ids, keys and amounts may be whole
   * numbers and BigInts. Throws TypeError for a counter, id, key or amount that Tally would refuse for its form, and for
   * a user who is no text (a lone surrogate); Error if it is `signed` and nobody is signed in.
   */
  increment(
    counter: string,
    id: Id,
    options?: { amount?: number | bigint; key?: Id; signed?: boolean },
  ): Promise<Outcome>;

  /** Be counted, or be counted no more (`present` false). The last wish wins. Throws as `increment` does.
   *
   * `anonymous`: if nobody is signed in, this browser is counted, by a secret in the storage that nobody else has. A user
   * who signs in takes over what it likes: theirs is put first, then the browser's is taken back. If nobody is signed in, throws
   * Error without `anonymous`, and if the storage keeps no secret.
   */
  like(counter: string, id: Id, present?: boolean, options?: { anonymous?: boolean }): Promise<Outcome>;

  /** `counter:id` with the id as Tally spells it, so that answers and entries can be compared with it. */
  of(counter: string, id: Id): string;

  /** Numbers that anyone may read, each asked for as `plays:9f3a`, in that order. They may be as old as the
   * counter's `max_age_s` says; `fresh` asks no cache of the browser's. Many are asked for in parts, and those of a part
   * without an answer have an `error`. Rejects if Tally answers none. */
  values(of: readonly string[], options?: { fresh?: boolean }): Promise<Value[]>;

  /** Which of these, asked for as `hearts:article-1`, count the user who is signed in; without one, this browser. Rejects
   * as `values`, and if nobody is signed in and this browser has liked nothing. */
  mine(of: readonly string[]): Promise<Mine[]>;

  /** The changes that wait, also those of other tabs, in the order in which they were made. `why` says why. */
  waiting(): Entry[];

  /** Send now what waits for a pause to end, or is denied. A browser that comes online does it too. */
  retry(): void;

  /** Take the changes of a user away that still wait, as when they sign out on a machine that others use. */
  forget(user: Id): void;

  /** Take back all that this browser likes without sign-in, and then drop its secret. Later pages go on with it. Resolves
   * when all is taken back. */
  forget(): Promise<Outcome[]>;

  addEventListener(type: "change", listener: (event: ChangeEvent) => void, options?: AddEventListenerOptions): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}
