/** Converts between ids and the paths, addresses and texts that people write. */

import { idOf } from "../client/tally.js";

/** Returns the id, or `ID#PERIOD`, of a text that a person writes. */
export function fullIdOf(written) {
  const [name, ...period] = written.split("#");
  return [idOf(name), ...period].join("#");
}

/** Returns the text that an id encodes: `/posts/x/` for `~2Fposts~2Fx~2F`. */
export function nameOf(id) {
  try {
    const name = decodeURIComponent(id.replace(/~(?=[0-9A-F]{2})/g, "%"));
    return fullIdOf(name) === id ? name : id;
  } catch {
    return id;
  }
}
