import type { Store } from "./tally.js";

/** Returns a storage for a client that keeps each change in a file, on the disk before the call returns.
 *
 * The folder is made if it is missing. Processes may share it. Throws the error of `fs`, for example if the folder is not writable. */
export declare function folder(path: string): Store;
