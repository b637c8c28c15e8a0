// Signs in as /console/config.json says. Only this module's memory has the token. The token is never stored, and never part
// of an address. After a reload the user has to sign in again.

const REDIRECT_ITEM = "tally-sign-in";
const EARLY_S = 30; // so long before its end a token counts as expired: a request takes time

let session = null; // {token, name, endsAt}: endsAt in milliseconds since 1970

export class SignInError extends Error {}

/** Returns the token; null if no user is signed in, or if the token has expired. */
export function token() {
  return session && Date.now() < session.endsAt ? session.token : null;
}

/** Returns the name of the user to show; "" if no user is signed in. The name stays after the token has expired. */
export function name() {
  return session ? session.name : "";
}

/** Forgets the token: the API refused it, or the user signs out. */
export function forget() {
  session = null;
}

/**
 * Begins a sign-in. `given`: the name (kind "name") or a token (kind "token"). With the kind "pkce" the browser goes to
 * the pool's page, and `finish` handles its return. Throws SignInError.
 */
export async function signIn(config, given = "") {
  const method = config.sign_in;
  if (method.kind === "name") {
    const body = JSON.stringify({ sub: given, scope: "tally/read", groups: ["operators"] });
    keepSession(await answerOf(fetch("/dev/token", { method: "POST", body })));
  } else if (method.kind === "token") {
    keepSession({ access_token: given.trim() });
  } else {
    await redirectToPool(method);
  }
}

/** Signs out, also at the pool: otherwise the next person at this browser would be signed in at once. */
export function signOut(config) {
  forget();
  const { kind, domain, client_id, redirect } = config.sign_in;
  if (kind === "pkce") location.assign(`${domain}/logout?${new URLSearchParams({ client_id, logout_uri: redirect })}`);
}

/**
 * Completes a sign-in if the pool has just redirected the browser to this page. Call it once, before the address is read.
 * Throws SignInError if this tab did not begin the sign-in, or if the pool refuses the code.
 */
export async function finish(config) {
  const answer = new URLSearchParams(location.search);
  if (config.sign_in.kind !== "pkce" || !(answer.has("code") || answer.has("error"))) return;
  // The state, the verifier and the hash survive the redirect in this tab. They are used once, and are not a token.
  const stored = JSON.parse(sessionStorage.getItem(REDIRECT_ITEM) || "{}");
  sessionStorage.removeItem(REDIRECT_ITEM);
  history.replaceState(null, "", location.pathname + (stored.hash || "")); // removes the code from the address
  if (!stored.state || answer.get("state") !== stored.state)
    throw new SignInError("This sign-in was not started on this page. Try again.");
  if (answer.has("error")) throw new SignInError(answer.get("error_description") || answer.get("error"));
  const { domain, client_id, redirect } = config.sign_in;
  const form = { grant_type: "authorization_code", client_id, redirect_uri: redirect };
  const body = new URLSearchParams({ ...form, code: answer.get("code"), code_verifier: stored.verifier });
  keepSession(await answerOf(fetch(`${domain}/oauth2/token`, { method: "POST", body })));
}

async function redirectToPool({ domain, client_id, redirect }) {
  const [state, verifier] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  sessionStorage.setItem(REDIRECT_ITEM, JSON.stringify({ state, verifier, hash: location.hash }));
  const form = { response_type: "code", client_id, redirect_uri: redirect, scope: "openid tally/read", state };
  const query = new URLSearchParams({ ...form, code_challenge: base64url(digest), code_challenge_method: "S256" });
  location.assign(`${domain}/oauth2/authorize?${query}`);
}

/** Returns the JSON of a token endpoint's answer. Throws SignInError with the endpoint's reason. */
async function answerOf(request) {
  let response, body;
  try {
    response = await request;
    body = await response.json();
  } catch {
    throw new SignInError("The sign-in service does not answer. Try again.");
  }
  if (!response.ok) throw new SignInError(body.error_description || body.message || body.error || "Signing in failed.");
  return body;
}

function keepSession({ access_token, expires_in }) {
  const claims = claimsOf(access_token);
  // A token that was pasted comes without `expires_in`. `exp`: in seconds since 1970.
  const endsAt = expires_in ? Date.now() + expires_in * 1000 : (claims.exp || Infinity) * 1000;
  session = { token: access_token, name: String(claims.username || claims.sub || ""), endsAt: endsAt - EARLY_S * 1000 };
}

/** Returns the claims of a token, to show them. Only the API checks the token. Throws SignInError. */
function claimsOf(jwt) {
  try {
    const text = atob(jwt.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  } catch {
    throw new SignInError("This is not a token: a token has three parts, separated by dots.");
  }
}

/** Returns 32 random bytes, as RFC 7636 asks for a verifier. */
function random() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)).buffer);
}

function base64url(buffer) {
  const text = btoa(String.fromCharCode(...new Uint8Array(buffer)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
