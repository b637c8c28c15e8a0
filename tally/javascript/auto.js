// One tag of a page, <script type="module" src="https://…/client/auto.js"></script>, defines the elements. The
// API serves this file without lines that begin with a comment, so write no comment behind code.
//
// data-session="session": the page has an object `window.session`. Its `user()` returns the user's id. Its `token(fresh)`
// returns an access token, and a new token if `fresh` is true (after a 401). The client reads `window.session` at each use,
// so a page may set `session` later. Scripts of the page may import { tally, refresh } from here. A page calls `refresh()`
// when somebody signs in or out.

import { define } from "./elements.js";
import { Tally } from "./tally.js";

// A module does not know its tag, so it looks for the tag with its address.
const { session } = [...document.scripts].find(({ src }) => src === import.meta.url)?.dataset ?? {};
const callSession = (name) => (fresh) => globalThis[session]?.[name]?.(fresh);

export const tally = new Tally({ user: callSession("user"), token: callSession("token") });
export const refresh = define(tally);
