// One tag of a page, <script type="module" src="https://…/client/auto.js"></script>, defines the elements. Comments have
// lines of their own.
//
// data-session="session": `window.session` is the page's { user(), token(fresh) }. The client reads `window.session` at each
// use, so a page may set `session` later. Scripts of the page may import { tally, refresh } from here.

import { define } from "./elements.js";
import { Tally } from "./tally.js";

// A module does not know its tag, so it looks for the tag with its address.
const { session } = [...document.scripts].find(({ src }) => src === import.meta.url)?.dataset ?? {};
const callSession = (name) => (fresh) => globalThis[session]?.[name]?.(fresh);

export const tally = new Tally({ user: callSession("user"), token: callSession("token") });
export const refresh = define(tally);
