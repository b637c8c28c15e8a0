// Signing in, in the way that /console/config.json says. The token is in this module's memory only: it is never stored,
// and never a part of an address. A page that is loaded again asks to sign in again.

const KEPT = "tally-sign-in";
const EARLY_S = 30; // a token that is about to expire counts as expired

let held = null; // {token, name, endsAt}: endsAt in milliseconds since 1970

export class SignInError extends Error {}

/** The token; null if nobody is signed in, or if it has expired. */
export function token() {
  return held && Date.now() < held.endsAt ? held.token : null;
}

/** Who is signed in, to show; "" if nobody is. It stays after the token has expired. */
export function name() {
  return held ? held.name : "";
}

/** Forget the token: the API refused it, or the person leaves. */
export function forget() {
  held = null;
}

/**
 * Begin signing in. `given` is the name (kind "name") or a token (kind "token"). With the kind "pkce" the browser leaves
 * for the pool's page, and comes back to `finish`. Throws SignInError.
 */
export async function signIn(config, given = "") {
  const way = config.sign_in;
  if (way.kind === "name") {
    const body = JSON.stringify({ sub: given, scope: "tally/read", groups: ["operators"] });
    hold(await answer(fetch("/dev/token", { method: "POST", body })));
  } else if (way.kind === "token") {
    hold({ access_token: given.trim() });
  } else {
    await leave(way);
  }
}

/** Sign out. The pool forgets its own session too, or the next person at this browser would be signed in at once. */
export function signOut(config) {
  forget();
  const { kind, domain, client_id, redirect } = config.sign_in;
  if (kind === "pkce") location.assign(`${domain}/logout?${new URLSearchParams({ client_id, logout_uri: redirect })}`);
}

/**
 * End what `signIn` began, if the pool has just sent the browser back. Call it once, before anything reads the address.
 * Throws SignInError if the answer is not to a request of this tab, or the pool refuses the code.
 */
export async function finish(config) {
  const given = new URLSearchParams(location.search);
  if (config.sign_in.kind !== "pkce" || !(given.has("code") || given.has("error"))) return;
  // Only these three outlive the redirect, in this tab only. They are used once, and are no token.
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
  sessionStorage.removeItem(KEPT);
  history.replaceState(null, "", location.pathname + (kept.hash || "")); // the code leaves the address at once
  if (!kept.state || given.get("state") !== kept.state)
    throw new SignInError("This sign-in was not started on this page. Try again.");
  if (given.has("error")) throw new SignInError(given.get("error_description") || given.get("error"));
  const { domain, client_id, redirect } = config.sign_in;
  const form = { grant_type: "authorization_code", client_id, redirect_uri: redirect };
  const body = new URLSearchParams({ ...form, code: given.get("code"), code_verifier: kept.verifier });
  hold(await answer(fetch(`${domain}/oauth2/token`, { method: "POST", body })));
}

async function leave({ domain, client_id, redirect }) {
  const [state, verifier] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  sessionStorage.setItem(KEPT, JSON.stringify({ state, verifier, hash: location.hash }));
  const form = { response_type: "code", client_id, redirect_uri: redirect, scope: "openid tally/read", state };
  const query = new URLSearchParams({ ...form, code_challenge: base64url(digest), code_challenge_method: "S256" });
  location.assign(`${domain}/oauth2/authorize?${query}`);
}

/** The JSON of a token endpoint's answer. Throws SignInError with its reason. */
async function answer(asked) {
  let response, said;
  try {
    response = await asked;
    said = await response.json();
  } catch {
    throw new SignInError("The sign-in service does not answer. Try again.");
  }
  if (!response.ok) throw new SignInError(said.error_description || said.message || said.error || "Signing in failed.");
  return said;
}

function hold({ access_token, expires_in }) {
  const claims = claimsOf(access_token);
  const endsAt = expires_in ? Date.now() + expires_in * 1000 : (claims.exp || Infinity) * 1000;
  held = { token: access_token, name: String(claims.username || claims.sub || ""), endsAt: endsAt - EARLY_S * 1000 };
}

/** The claims of a token, to show. Whether they are true, the API decides. Throws SignInError. */
function claimsOf(jwt) {
  try {
    const text = atob(jwt.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  } catch {
    throw new SignInError("This is not a token: a token has three parts, separated by dots.");
  }
}

/** 32 random bytes, as RFC 7636 wants a verifier. */
function random() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)).buffer);
}

function base64url(buffer) {
  const text = btoa(String.fromCharCode(...new Uint8Array(buffer)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
