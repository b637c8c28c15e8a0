import type { Tally } from "./tally.js";

/** Define <tally-like>, <tally-plays> and <tally-count> for this client. After another call the elements ask its client for
 * user and token; if that client is of another API, the call changes nothing and warns.
 *
 * Returns a function that reads all numbers again: call it when somebody signs in or out. */
export declare function define(tally: Tally): () => void;
