import type { Store } from "./tally.js";

/** A folder as the storage of a client: a file for each change, on the disk before the call returns.
 *
 * The folder is made if it is missing. Processes may share it. Throws what `fs` throws, as where nobody may write. */
export declare function folder(path: string): Store;
