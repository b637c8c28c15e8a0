import type { Store } from "./tally.js";

/** Returns a storage for a client that keeps each change in a file, on the disk before the call returns.
 *
 * The folder is made if it is missing. Throws the error of `fs`, for example if the folder is not writable.
 *
 * Let one process at a time use a folder. If two processes send one change in the same instant, a gateway denies one
 * request, and the answer to the other request is lost, then the change may count twice a day later. */
export declare function folder(path: string): Store;
