/** The console: shows the page that the hash names, keeps it through a sign-in and a lost connection. */

import { Api } from "./api.js";
import * as drift from "./drift.js";
import { HERE, inUtc, showIn, timeText } from "./format.js";
import * as overview from "./overview.js";
import { make } from "./parts.js";
import { finish, forget, name, signIn, signOut, token } from "./signin.js";
import * as tally from "./tally.js";
import * as top from "./top.js";

const PAGES = {
  "": { title: "Overview", load: () => overview },
  tally: { title: "Number", load: () => tally },
  top: { title: "Top", load: () => top },
  drift: { title: "Drift", load: () => drift },
  try: { title: "Try it", load: () => import("./tryit.js") },
};
const at = (id) => document.getElementById(id);
const page = at("page");
const api = new Api(token);
const zone = new EventTarget();
let config;
let counters = [];
let leave = () => {};
let shown = 0; // pages so far
let again = false; // whether somebody was signed in before

/** What the pages know of the console. */
function contextOf(signal) {
  const names = () => (counters.length ? counters.map((counter) => counter.name) : config.counters);
  const knows = (status) => (counters = status.counters);
  const counter = (which) => counters.find((one) => one.name === which);
  // What is declared, if somebody is signed in and it is not known yet. Returns whether it was asked for.
  const learn = async () => {
    if (counters.length || !token()) return false;
    knows(await api.get("status", {}, signal));
    return true;
  };
  return { config, api, zone, signal, counter, counterNames: names, knows, learn };
}

/** Show the page that the hash names. A hash that is no address of ours is said to be none. */
async function route() {
  let params;
  try {
    params = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    params = [null];
  }
  const [which, ...rest] = params;
  const found = Object.hasOwn(PAGES, which) && (which !== "try" || config.try_it) ? PAGES[which] : null;
  leave();
  const [turn, left] = [++shown, new AbortController()];
  leave = () => left.abort();
  page.replaceChildren();
  navigation(which);
  try {
    if (found === null) {
      page.append(
        make("h1", { tabindex: -1 }, "There is no such page"),
        make("p", {}, make("a", { href: "#/" }, "To the overview")),
      );
    } else {
      const stop = await (await found.load()).show(page, contextOf(left.signal), ...rest);
      leave = () => (left.abort(), stop?.());
    }
  } catch (error) {
    if (turn !== shown) return;
    console.error(error);
    page.replaceChildren(
      make("h1", { tabindex: -1 }, "This page failed"),
      make("p.error", { role: "alert" }, error.words ?? "Load it again."),
    );
  }
  document.title = [...rest.reverse(), found !== PAGES.tally && found?.title, "Tally"].filter(Boolean).join(" · ");
  if (turn > 1) page.querySelector("h1")?.focus();
}

function navigation(current) {
  const listed = ["", "top", "drift", ...(config.try_it ? ["try"] : [])];
  const link = (which) =>
    make(
      "li",
      {},
      make("a", { href: `#/${which}`, "aria-current": which === current ? "page" : null }, PAGES[which].title),
    );
  at("pages").replaceChildren(make("ul", {}, listed.map(link)));
}

/** Who is signed in, or the button to. */
function who() {
  const out = () => {
    signOut(config);
    counters = [];
    who();
    route(); // from nothing: what this person saw is not for the next one
  };
  at("who").replaceChildren(
    ...(token()
      ? [
          make("span.name", { title: name() }, name()),
          make("button.small", { type: "button", onclick: out }, "Sign out"),
        ]
      : [make("button.small", { type: "button", onclick: askToSignIn }, "Sign in")]),
  );
}

/** The way to sign in that this stack has, above the page, which stays. */
function askToSignIn(event) {
  if (!at("sign-in")) at("ask").replaceChildren(signInForm());
  if (event?.type === "click") at("sign-in").querySelector("input, button").focus();
}

function signInForm(reason = "") {
  const { kind } = config.sign_in;
  const said = make("p.error", { role: "alert" }, reason);
  const input = make("input", {
    id: "given",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    type: kind === "token" ? "password" : "text",
  });
  const ask = {
    name: "Any name will do: this stack runs on your machine.",
    token: "Paste a token of your issuer with the scope tally/read. It stays in the memory of this page.",
    pkce: "You sign in at your pool's page, and return to this page.",
  };
  const submit = async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await signIn(config, input.value.trim());
    } catch (error) {
      said.textContent = error.message;
      return;
    }
    if (!token()) return; // the browser is on its way to the pool
    section.remove();
    who();
    api.again();
    page.querySelector("h1")?.focus();
  };
  const section = make(
    "section.card.sign-in",
    { id: "sign-in", "aria-labelledby": "sign-in-head" },
    make("h2", { id: "sign-in-head" }, again ? "Sign in again" : "Sign in"),
    make("p.quiet", {}, ask[kind]),
    make(
      "form.row",
      { onsubmit: submit },
      kind === "pkce"
        ? null
        : make("p.wide", {}, make("label", { for: "given" }, kind === "token" ? "Token" : "Your name"), input),
      make("p", {}, make("button", {}, "Sign in")),
    ),
    said,
  );
  return section;
}

/** Say that the connection is lost, and what the numbers are then. */
function connection() {
  document.documentElement.toggleAttribute("data-lost", api.lost);
  const since = api.seenAt ? ` The numbers are as of ${timeText(api.seenAt, "clock")}.` : "";
  at("lost").replaceChildren(
    ...(api.lost ? [make("p", {}, make("strong", {}, "No connection to Tally."), `${since} Trying again…`)] : []),
  );
}

function footer() {
  const button = make("button.small", { type: "button", "aria-pressed": "false" }, "Times in UTC");
  const where = make("span.quiet", {}, `Times are in ${HERE}.`);
  button.addEventListener("click", () => {
    showIn(!inUtc());
    button.setAttribute("aria-pressed", String(inUtc()));
    where.textContent = `Times are in ${inUtc() ? "UTC" : HERE}.`;
    zone.dispatchEvent(new Event("change"));
  });
  document.querySelector("footer").replaceChildren(where, ...(HERE === "UTC" ? [] : [button]));
}

async function begin() {
  try {
    config = await api.get("console/config.json");
  } catch (error) {
    page.replaceChildren(
      make("h1", {}, "Tally"),
      make("p.error", { role: "alert" }, error.words ?? "The console failed."),
    );
    api.addEventListener("again", begin, { once: true });
    return;
  }
  let refused = "";
  await finish(config).catch((error) => (refused = error.message));
  at("stage").replaceChildren(
    ...[config.stage, make("span", {}, config.region && ` · ${config.region}`)].filter(Boolean),
  );
  who();
  footer();
  addEventListener("hashchange", route);
  api.addEventListener("refused", ({ detail }) => {
    again ||= Boolean(name());
    if (detail.status === 401) forget();
    who();
    askToSignIn();
    if (detail.status === 403) at("sign-in").querySelector("[role=alert]").textContent = `${name()}: ${detail.words}`;
  });
  await route();
  if (refused) at("ask").replaceChildren(signInForm(refused));
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the page
  at("main").focus();
});
api.addEventListener("connection", connection);
begin();
