/** Ids that are paths, addresses, or text of any script, as people write them. */

import { idOf } from "../client/tally.js";

/** The id, or `ID#PERIOD`, of what a person writes. */
export function fullIdOf(written) {
  const [name, ...period] = written.split("#");
  return [idOf(name), ...period].join("#");
}

/** What an id names, for people: `/posts/x/` for `~2Fposts~2Fx~2F`. */
export function nameOf(id) {
  try {
    const name = decodeURIComponent(id.replace(/~(?=[0-9A-F]{2})/g, "%"));
    return fullIdOf(name) === id ? name : id;
  } catch {
    return id;
  }
}
