import type { Tally } from "./tally.js";

/** Define <tally-like>, <tally-plays> and <tally-count> for this client, once in a page.
 *
 * Returns a function that reads all numbers again: call it when somebody signs in or out. */
export declare function define(tally: Tally): () => void;
