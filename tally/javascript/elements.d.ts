import type { Tally } from "./tally.js";

/** Defines <tally-like>, <tally-plays> and <tally-count> for this client. A later call replaces
 * the client; if the new client is of another API, the call changes nothing and warns.
 *
 * Returns a function that reads all numbers again: call it when somebody signs in or out. */
export declare function define(tally: Tally): () => void;
