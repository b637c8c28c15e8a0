// `make generate` writes this file from the operations: do not edit it.

/** The change was counted. */
export interface Counted {
  counter: string;
  id: string;
  counted: true;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  /** Of a numbered counter: this change's number, which no other change has. */ number?: number;
  /** Whether a numbered counter has no number after this one. */ last?: boolean;
  /** The change exceeds the limit, as `used` allows within the `debt`. */ over?: true;
  /** With `?value=true`, if visible now: the number after the change, strongly consistent. */ value?: number;
}

/** The visitor is counted in this period. `new`: false if an earlier visit in the period counted. */
export interface Visitor {
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period: string;
  new: boolean;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
}

/** The value was set. */
export interface NewState {
  counter: string;
  id: string;
  value: number;
  /** Every change increments the version. The `ETag` is the version in quotes. */ version: number;
}

/** The limit of one id. `override`: false for the declared limit, which may change with a deploy. */
export interface IdLimit {
  counter: string;
  id: string;
  limit: number;
  override: boolean;
}

/** All changes were counted. `changes`: how many. `tallies`: how many numbers the changes moved. */
export interface Changed {
  counted: true;
  changes: number;
  tallies: number;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
}

/** The change is taken back. `changed`: false if an earlier request had taken the change back. */
export interface Voided {
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  /** The amount that the change had added, and that the void takes back. */ amount: number;
  changed: boolean;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
}

/** All changes under the key are taken back. `tallies`: how many numbers the changes had moved. `changed`: false if an earlier request had taken the changes back. */
export interface AllVoided {
  tallies: number;
  changed: boolean;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
}

/** A number. If it can be set, it has a version. If its changes are visible soon, it has `as_of`. With a ceiling or a floor, it has a `limit`, and how much is `left`. */
export interface Value {
  counter: string;
  id: string;
  value: number;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  /** Every change increments the version. The `ETag` is the version in quotes. */ version?: number;
  /** Seconds since 1970. Numbers have every change before this time. Null: unknown. */ as_of?: number | null;
  /** `as_of` is approximate, as the team's table gets no heartbeats. */ about?: true;
  /** The present ceiling of this id, or its floor if it has no ceiling. */ limit?: number;
  /** The amount that still fits up to `limit`. Below 0: how far the number is beyond `limit`. */ left?: number;
  /** The number is beyond `limit`. `left` says how far. */ over?: true;
  /** Of a counter with periods: when the period ends, in seconds since 1970. */ resets_at?: number;
}

/** A number that cannot be read, and why. */
export interface Unreadable {
  counter: string;
  id: string;
  error: Record<string, unknown>;
}

/** Numbers, in the order of the request. Tally reads each number by itself, so they are not a snapshot. */
export interface Values {
  tallies: (Value | Unreadable)[];
}

/** Whether the child is present now, and whether this request changed that. */
export interface ChangedChild {
  counter: string;
  id: string;
  child: string;
  present: boolean;
  changed: boolean;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
  /** With `?value=true`, if visible now: the number after the change, strongly consistent. */ value?: number;
}

/** Whether the child is present, and so counts. */
export interface Child {
  counter: string;
  id: string;
  child: string;
  present: boolean;
}

/** One child, by its name. `since`: when the child was put. */
export interface Listed {
  child: string;
  /** Seconds since 1970. Null: Tally did not put the child. */ since: number | null;
}

/** A child without a user: a browser whose user is not signed in. `since`: the start of the day (UTC) of the put. */
export interface ListedAnonymous {
  anonymous: true;
  /** Seconds since 1970. Null: Tally did not put the child. */ since: number | null;
}

/** A page of the children, in the order of their percent-encoded names. Children without a user come first. `cursor` is null on the last page. */
export interface Children {
  counter: string;
  id: string;
  children: (Listed | ListedAnonymous)[];
  cursor: string | null;
}

/** For each id, in the order of the request, whether the caller is a child. */
export interface Mine {
  mine: (Child | Unreadable)[];
}

/** Whether this browser is counted now, and whether this request changed that. */
export interface ChangedAnonymous {
  counter: string;
  id: string;
  present: boolean;
  changed: boolean;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
  /** With `?value=true`, if visible now: the number after the change, strongly consistent. */ value?: number;
}

/** Whether this browser is counted. */
export interface Anonymous {
  counter: string;
  id: string;
  present: boolean;
}

/** For each id, in the order of the request, whether this browser is counted. */
export interface MineAnonymous {
  anonymous: (Anonymous | Unreadable)[];
}

/** The id is removed, with its children. `changed`: false if there was nothing to remove. */
export interface Removed {
  counter: string;
  id: string;
  removed: true;
  changed: boolean;
}

/** The amount is taken, and held until `expires_at`. In a replay, `state` is the present state. */
export interface Held {
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  hold: string;
  amount: number;
  /** Seconds since 1970. */ expires_at: number;
  state: "held" | "committed" | "released" | "expired" | "voided";
}

/** The state of a hold, and whether this request changed the state. */
export interface Settled {
  counter: string;
  id: string;
  hold: string;
  state: "committed" | "released" | "voided";
  /** The whole amount that a commit took, or that a void gave back. */ amount?: number;
  changed: boolean;
}

/** A post. `likes`: how many users like the post. `revision`: how often its author has edited the post. */
export interface Post {
  id: string;
  author: string;
  /** Seconds since 1970. */ created_at: number;
  revision: number;
  likes: number;
  body: string;
}

/** The post is removed. `changed`: false if an earlier request had removed the post. */
export interface RemovedPost {
  id: string;
  removed: true;
  changed: boolean;
}

/** A visit was counted. The receipt stores its target, the URL, and the answer. So the answer omits the URL. */
export interface Visited {
  counted: true;
  /** Reads show the change `now`, or `soon`: within seconds. It counts either way. */ visible: "now" | "soon";
}

/** How often a page was visited: `value` by people, `bots` by crawlers. `id` is the page's canonical URL. */
export interface Visits {
  counter: "visits";
  id: string;
  value: number;
  bots: number;
  /** Distinct visitors of today, in UTC, if they are counted. */ visitors?: number;
  /** Seconds since 1970. Numbers have every change before this time. Null: unknown. */ as_of: number | null;
}

/** Whether a change was counted. `unknown`: it never arrived, Tally refused it, or its receipt has expired. */
export interface Receipt {
  operation: "increment" | "change" | "set_counter" | "put_limit" | "delete_limit" | "put_child" | "delete_child" | "put_mine" | "delete_mine" | "put_anonymous" | "delete_anonymous" | "hold" | "change_hold" | "visit";
  target: string;
  key: string;
  state: "counted" | "unknown";
  /** The change was counted, and a void took it back. */ voided?: true;
  /** The first answer, without a child's name. */ answer?: Record<string, unknown>;
}

/** Whether each change was counted, in the order of the request. */
export interface Receipts {
  receipts: (Receipt)[];
}

/** One hour or day. */
export interface Point {
  /** Seconds since 1970. */ from: number;
  value: number;
}

/** A repair, which is in no hour or day of `series`, because it is not traffic. */
export interface RepairOfSeries {
  /** Seconds since 1970. */ at: number;
  value: number;
  /** The proof: `ledger` (drift), `recount` (children), `rebuild` (lost changes). */ how: string;
  /** The part of `value` that the series lack: an error from before `since`, or lost changes. */ added: number;
}

/** By how much a number moved in each hour or day. `from`: where the hour or day begins. `id`: empty for all ids. */
export interface Series {
  counter: string;
  id: string;
  by: "hour" | "day";
  series: (Point)[];
  /** Imported rows by day, in UTC. They are not traffic, and in no hour or day of `series`. */ imports: (Point)[];
  repairs: (RepairOfSeries)[];
  /** When the series begin, in seconds since 1970. Null: no series. */ since: number | null;
  /** Seconds since 1970. Numbers have every change before this time. Null: unknown. */ as_of: number | null;
}

/** One id, and by how much its number moved. */
export interface TopEntry {
  id: string;
  value: number;
}

/** The ids whose numbers moved most in a span, the largest move first. */
export interface Top {
  counter: string;
  by: "hour" | "day" | "month";
  /** The hour, day or month, in UTC. Null: no hour is summed up yet. */ span: string | null;
  top: (TopEntry)[];
  /** The most by which a value may be too low or too high. */ error_max: number;
  /** Seconds since 1970. Numbers have every change before this time. Null: unknown. */ as_of: number | null;
}

/** A number that drifts, and since when. `drift`: the number less the accepted changes; below 0 if it is too low. */
export interface Drifting {
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  drift: number;
  /** Seconds since 1970. */ since: number;
  /** A part of the drift has lasted for five judged minutes. A repair takes this part back. */ confirmed: boolean;
}

/** The numbers that drift now. `cursor` is null on the last page. */
export interface Drifts {
  drift: (Drifting)[];
  cursor: string | null;
}

/** How much of a number was imported. */
export interface Imported {
  amount: number;
  /** Seconds since 1970. Later imports are not in `amount`. */ as_of: number;
}

/** One of the items that a number is spread over. `shard`: its position, from 0. `value`: its part of the number. */
export interface Shard {
  shard: number;
  value: number;
}

/** The drift of one number, as in `GET /drift`. */
export interface Drift {
  drift: number;
  /** Seconds since 1970. */ since: number;
  confirmed: boolean;
}

/** One repair. `how`: the proof, as `ledger` (drift), `recount` (children) or `rebuild` (lost changes). */
export interface Repair {
  /** Seconds since 1970. */ at: number;
  amount: number;
  how: string;
  who: string;
  why: string;
}

/** One number. `drift` is null if the number does not drift. `imported` is null until Tally has summed up the first hour, and for a counter with periods. */
export interface Details {
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  value: number;
  imported: Imported | null;
  shards: (Shard)[];
  drift: Drift | null;
  /** Seconds since 1970. Tally has judged every earlier minute. Null: no minute. */ judged_up_to: number | null;
  repairs: (Repair)[];
}

/** One health check. `line`: its result for people. `see`: the section of Tally's docs that says what to do. */
export interface HealthCheck {
  name: string;
  state: "ok" | "wrong" | "unknown";
  line: string;
  see: string;
}

/** One counter, as it is declared. `public`: anyone may read it. `listed`: anyone may list its ids. `counts`: what moves its numbers. The ids of `pages` and `page visitors` are URLs. `items` are in a team's table. */
export interface Declared {
  name: string;
  visible: "now" | "soon";
  /** Who may change it. `caller`: any signed-in user. */ changes: "anyone" | "caller" | "service";
  public: boolean;
  listed: boolean;
  counts: "changes" | "children" | "pages" | "page visitors" | "visitors" | "items";
  /** The team's attribute that Tally checks, and whose drift it reports. Null: no attribute. */ watched: string | null;
  retired: boolean;
  numbered: boolean;
  /** Whether it has thresholds, which make events. */ notifies: boolean;
  max_shards: number;
  delta: number | null;
  start: number;
  floor: number | null;
  ceiling: number | null;
  debt: number;
  limit_overrides: boolean;
  period: string | null;
  timezone: string | null;
}

/** The health of the stack. `at`: when it was checked. `where`: the options with which `tally` finds this stack. */
export interface Status {
  /** True: each part is ok. False: a part is wrong. Null: a part is unknown, no part is wrong. */ well: boolean | null;
  parts: (HealthCheck)[];
  /** Seconds since 1970. */ at: number;
  /** Seconds since 1970. Numbers have every change before this time. Null: unknown. */ as_of: number | null;
  /** Seconds since 1970. Tally has judged every earlier minute. Null: no minute. */ judged_up_to: number | null;
  stack: string;
  stage: string;
  where: string;
  counters: (Declared)[];
}

/** A threshold event, as the bus gets it. `by`: its cause, such as a new `limit`. `sent`: the bus has the event. */
export interface Crossed {
  /** The id of the event. Each copy of the event has the same id. */ event: string;
  counter: string;
  id: string;
  /** Of a counter with periods: the period, such as `2026-11`. */ period?: string;
  threshold: number;
  /** The threshold as a percentage of `limit`, the ceiling. */ percent?: number;
  limit?: number;
  /** The threshold is a multiple of this. */ every?: number;
  direction: "up" | "down";
  value: number;
  /** The number before the change; left out for a sum of shards. */ before?: number;
  by?: "change" | "edit" | "limit" | "removal" | "repair";
  /** Seconds since 1970. */ at: number;
  /** Sorts the events of one number. */ sequence: string;
  sent: boolean;
}

/** The newest events, the newest first. */
export interface Events {
  events: (Crossed)[];
}

/** Tally reaches its store. `version`: the version of the deployed code. */
export interface Health {
  status: "ok";
  version: string;
  /** The least number of seconds for which Tally recognises a key, by counter. */ receipts_live_s: Record<string, number>;
}

/** Whether an earlier request with the same key had counted the change. */
export interface Replayed {
  replayed: boolean;
}

/**
 * A method for each operation. `caller`: who asks, a service's name or a user's `sub`. The errors:
 * - not-found: There is no such post, counter, hold or receipt, or Tally no longer keeps it.
 * - limit-reached: The change does not fit the limit, or a numbered counter has given out the new value.
 * - counter-retired: The counter is retired, and takes no changes.
 * - precondition-failed: The counter has another version than `If-Match` says.
 * - precondition-required: `If-Match` is missing.
 * - not-counted: No scan has counted your own items, or a new scan is needed.
 * - parent-removed: The post or other parent was removed.
 * - forbidden: The caller may not do this, or the deployment does not list the host of the page.
 * - hold-settled: The hold was committed, released, expired or voided before.
 * - edit-conflict: Other calls edited the post during each attempt of this call.
 * - not-committed: No key arrived, or its receipt is not Tally's.
 */
export interface Requests {
  /** Move a counter. Errors: not-found, limit-reached, counter-retired. */
  increment(fields: {
    counter: string;
    id: string;
    /** The amount to add, below 0 to subtract. If the counter has a `delta`, send this `delta` or no amount. */ amount?: number;
    /** Whether the amount is used already. Such an amount may exceed the limit, up to the counter's `debt`. */ used?: boolean;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<Counted & Replayed>;
  /** Count a visitor. Errors: not-found, limit-reached, counter-retired. */
  add_visitor(fields: {
    counter: string;
    id: string;
    /** Your name for the visitor, such as a user's `sub`. Tally stores a hash of it, keyed with a secret of the stack. */ visitor: string;
    /** When you first sent this visit, in seconds since 1970, within the last day. This time decides its period. */ at?: number;
    caller?: string;
  }): Promise<Visitor>;
  /** Set a counter, if it has the version that you read. Errors: not-found, limit-reached, counter-retired, precondition-failed, precondition-required. */
  set_counter(fields: {
    counter: string;
    id: string;
    /** The value to set. */ value: number;
    /** The version that you read. In the header: the `ETag`. */ version: number;
    idempotency_key?: string;
    caller?: string;
  }): Promise<NewState & Replayed>;
  /** The limit of one id. Errors: not-found. */
  get_limit(fields: { counter: string; id: string; caller?: string }): Promise<IdLimit>;
  /** Override the limit of one id. Errors: not-found. */
  put_limit(fields: {
    counter: string;
    id: string;
    /** The ceiling of this id, or its floor if the counter has no ceiling. */ limit: number;
    idempotency_key?: string;
    caller?: string;
  }): Promise<IdLimit & Replayed>;
  /** Reset the limit of one id to the declared one. Errors: not-found. */
  delete_limit(fields: {
    counter: string;
    id: string;
    idempotency_key?: string;
    caller?: string;
  }): Promise<IdLimit & Replayed>;
  /** Move many counters under one key. Errors: limit-reached, counter-retired. */
  change(fields: {
    /** The changes that count together, of at most 90 numbers. Limits judge several changes of one number by their sum. */ changes: Record<string, unknown>[];
    /** `soon`: Tally stores one receipt for all changes, and adds them up within seconds. Only for counters without limits and without a version. */ visible?: string;
    idempotency_key?: string;
    caller?: string;
  }): Promise<Changed & Replayed>;
  /** Take a change back. Errors: not-found, limit-reached, counter-retired. */
  void(fields: {
    counter: string;
    id: string;
    /** The key under which the change was counted. */ key: string;
    caller?: string;
  }): Promise<Voided>;
  /** Take a batch back. Errors: not-found, limit-reached, counter-retired. */
  void_changes(fields: {
    /** The key under which the change was counted. */ key: string;
    caller?: string;
  }): Promise<AllVoided>;
  /** The value of a counter. Errors: not-found, not-counted. */
  get_counter(fields: {
    counter: string;
    id: string;
    /** For a counter with periods: a minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year. Without it: the current period. */ period?: string;
    caller?: string;
  }): Promise<Value>;
  /** Many numbers that anyone may read. */
  get_tallies(fields: {
    /** `counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. In a URL, repeat the parameter. */ of: string[];
    caller?: string;
  }): Promise<Values>;
  /** Many numbers of any counters. */
  get_any_tallies(fields: {
    /** `counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. In a URL, repeat the parameter. */ of: string[];
    caller?: string;
  }): Promise<Values>;
  /** Put a child, so that it counts. Errors: not-found, counter-retired, parent-removed. */
  put_child(fields: {
    counter: string;
    id: string;
    /** The child's name, such as a user's `sub`. Percent-encoded, it has at most 512 bytes. */ name: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedChild & Replayed>;
  /** Remove a child, so that it does not count. Errors: not-found, counter-retired, parent-removed. */
  delete_child(fields: {
    counter: string;
    id: string;
    /** The child's name, such as a user's `sub`. Percent-encoded, it has at most 512 bytes. */ name: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedChild & Replayed>;
  /** Whether a child counts. Errors: not-found. */
  get_child(fields: {
    counter: string;
    id: string;
    /** The child's name, such as a user's `sub`. Percent-encoded, it has at most 512 bytes. */ name: string;
    caller?: string;
  }): Promise<Child>;
  /** The children that count, a page at a time. Errors: not-found. */
  list_children(fields: {
    counter: string;
    id: string;
    /** How many entries a page has. */ limit?: number;
    /** The `cursor` of the previous page. */ cursor?: string;
    caller?: string;
  }): Promise<Children>;
  /** Count yourself, as with a like. Errors: not-found, counter-retired, parent-removed, forbidden. */
  put_mine(fields: {
    counter: string;
    id: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedChild & Replayed>;
  /** Stop counting yourself, as with an unlike. Errors: not-found, counter-retired, parent-removed, forbidden. */
  delete_mine(fields: {
    counter: string;
    id: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedChild & Replayed>;
  /** Whether you are counted. Errors: not-found, forbidden. */
  get_mine(fields: { counter: string; id: string; caller?: string }): Promise<Child>;
  /** Which of these ids count you. */
  list_mine(fields: {
    /** `counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. In a URL, repeat the parameter. */ of: string[];
    caller?: string;
  }): Promise<Mine>;
  /** Count a browser without sign-in. Errors: not-found, counter-retired, parent-removed, forbidden. */
  put_anonymous(fields: {
    counter: string;
    id: string;
    /** A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id. */ secret: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedAnonymous & Replayed>;
  /** Stop counting a browser without sign-in. Errors: not-found, counter-retired, parent-removed, forbidden. */
  delete_anonymous(fields: {
    counter: string;
    id: string;
    /** A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id. */ secret: string;
    /** Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit. */ value?: boolean;
    idempotency_key?: string;
    caller?: string;
  }): Promise<ChangedAnonymous & Replayed>;
  /** Whether this secret is counted. Errors: not-found, forbidden. */
  get_anonymous(fields: {
    counter: string;
    id: string;
    /** A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id. */ secret: string;
    caller?: string;
  }): Promise<Anonymous>;
  /** Which of these ids count the browser with this secret. */
  list_anonymous(fields: {
    /** `counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. In a URL, repeat the parameter. */ of: string[];
    /** A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id. */ secret: string;
    caller?: string;
  }): Promise<MineAnonymous>;
  /** Remove an id with all its children. Errors: not-found, counter-retired. */
  remove_parent(fields: { counter: string; id: string; caller?: string }): Promise<Removed>;
  /** Take an amount and hold it. Errors: not-found, limit-reached, counter-retired. */
  hold(fields: {
    counter: string;
    id: string;
    /** The amount to take. */ amount: number;
    /** The seconds until the hold expires and gives the amount back. */ ttl_s: number;
    idempotency_key?: string;
    caller?: string;
  }): Promise<Held & Replayed>;
  /** Change the amount of a hold, or when it expires. Errors: not-found, hold-settled, limit-reached, counter-retired. */
  change_hold(fields: {
    counter: string;
    id: string;
    /** The id of the hold. */ hold: string;
    /** The new amount of the hold. Without it: the amount stays. */ amount?: number;
    /** The seconds from now until the hold expires. Without it: the time stays. */ ttl_s?: number;
    idempotency_key?: string;
    caller?: string;
  }): Promise<Held & Replayed>;
  /** Commit a hold, at the held amount or at the used amount. Errors: not-found, hold-settled, limit-reached. */
  commit_hold(fields: {
    counter: string;
    id: string;
    /** The id of the hold. */ hold: string;
    /** The amount that was used, less or more than was held. Without it: the held amount. */ amount?: number;
    caller?: string;
  }): Promise<Settled>;
  /** Release a hold, which gives its amount back. Errors: not-found, hold-settled, limit-reached. */
  release_hold(fields: {
    counter: string;
    id: string;
    /** The id of the hold. */ hold: string;
    caller?: string;
  }): Promise<Settled>;
  /** Void a committed hold. Errors: not-found, hold-settled, limit-reached, counter-retired. */
  void_hold(fields: {
    counter: string;
    id: string;
    /** The id of the hold. */ hold: string;
    caller?: string;
  }): Promise<Settled>;
  /** Create a post, or edit your own. Errors: forbidden, edit-conflict, parent-removed. */
  put_post(fields: { id: string; /** At most 10240 bytes in UTF-8. */ body: string; caller?: string }): Promise<Post>;
  /** A post with its likes. Errors: not-found. */
  get_post(fields: { id: string; caller?: string }): Promise<Post>;
  /** Delete your own post. Errors: not-found, forbidden. */
  delete_post(fields: { id: string; caller?: string }): Promise<RemovedPost>;
  /** Count a visit. Errors: forbidden. */
  visit(fields: {
    /** An absolute http or https URL. Tally drops its fragment and the parameters that the deployment lists (`utm_source`, …). The rest, normalised by RFC 3986, has at most 1024 bytes. The deployment must list its host. */ url: string;
    /** The browser's `User-Agent`. Tally counts visits of crawlers separately. */ user_agent?: string;
    /** The visitor's IP address; nothing stores it. */ address?: string;
    idempotency_key?: string;
    caller?: string;
  }): Promise<Visited & Replayed>;
  /** How often a page was visited. */
  get_visits(fields: {
    /** An absolute http or https URL. Tally drops its fragment and the parameters that the deployment lists (`utm_source`, …). The rest, normalised by RFC 3986, has at most 1024 bytes. */ url: string;
    caller?: string;
  }): Promise<Visits>;
  /** Whether these anonymous changes counted. Errors: not-committed. */
  get_receipts(fields: {
    /** The operation that the key was sent with. */ of: string;
    /** What was changed: `counter/id`, a page's URL, or `changes` for a batch. */ target: string[];
    /** The key of each change. */ key: string[];
    caller?: string;
  }): Promise<Receipts>;
  /** Whether these changes of mine counted. Errors: not-committed. */
  get_own_receipts(fields: {
    /** The operation that the key was sent with. */ of: string;
    /** What was changed: `counter/id`, a page's URL, or `changes` for a batch. */ target: string[];
    /** The key of each change. */ key: string[];
    caller?: string;
  }): Promise<Receipts>;
  /** Whether these changes of a caller counted. Errors: not-committed. */
  get_any_receipts(fields: {
    /** The operation that the key was sent with. */ of: string;
    /** What was changed: `counter/id`, a page's URL, or `changes` for a batch. */ target: string[];
    /** The key of each change. */ key: string[];
    caller?: string;
  }): Promise<Receipts>;
  /** A number by the hour or by the day. Errors: not-found, forbidden. */
  get_series(fields: {
    /** `counter:id`, such as `plays:9f3a`. A counter alone means all of its ids together. */ of: string;
    /** Whether each point is an hour or a day. */ by?: string;
    /** A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset. */ from?: number;
    /** A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset. */ to?: number;
    /** The time zone of the days. Without it: UTC. Each of its days must begin at a full hour of UTC. */ tz?: string;
    caller?: string;
  }): Promise<Series>;
  /** A number of any counter by the hour or by the day. Errors: not-found. */
  get_any_series(fields: {
    /** `counter:id`, such as `plays:9f3a`. A counter alone means all of its ids together. */ of: string;
    /** Whether each point is an hour or a day. */ by?: string;
    /** A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset. */ from?: number;
    /** A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset. */ to?: number;
    /** The time zone of the days. Without it: UTC. Each of its days must begin at a full hour of UTC. */ tz?: string;
    caller?: string;
  }): Promise<Series>;
  /** The ids that moved most in an hour, a day or a month. Errors: not-found, forbidden. */
  get_top(fields: {
    counter: string;
    /** The list's span: an hour, a day or a month. */ by?: string;
    /** An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC. */ span?: string;
    /** How many ids the list has at most. */ limit?: number;
    caller?: string;
  }): Promise<Top>;
  /** The ids of any counter that moved most. Errors: not-found. */
  get_any_top(fields: {
    counter: string;
    /** The list's span: an hour, a day or a month. */ by?: string;
    /** An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC. */ span?: string;
    /** How many ids the list has at most. */ limit?: number;
    caller?: string;
  }): Promise<Top>;
  /** The numbers that drift, a page at a time. */
  get_drift(fields: {
    /** How many entries a page has. */ limit?: number;
    /** The `cursor` of the previous page. */ cursor?: string;
    caller?: string;
  }): Promise<Drifts>;
  /** One number: its shards, its drift, who repaired it, and how much of it was imported. Errors: not-found, not-counted. */
  get_details(fields: {
    counter: string;
    id: string;
    /** For a counter with periods: a minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year. Without it: the current period. */ period?: string;
    caller?: string;
  }): Promise<Details>;
  /** The health of the stack. */
  get_status(fields: { caller?: string }): Promise<Status>;
  /** The newest events: numbers that crossed a threshold of their counter. */
  get_events(fields: { /** How many entries a page has. */ limit?: number; caller?: string }): Promise<Events>;
  /** Whether Tally reaches its store. */
  health(fields: { caller?: string }): Promise<Health>;
}
