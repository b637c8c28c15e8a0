/** The console. Shows the page that the hash names, also after a sign-in and after a lost connection. */

import { Api } from "./api.js";
import * as drift from "./drift.js";
import { HERE, inUtc, showIn, timeText } from "./format.js";
import * as overview from "./overview.js";
import { make } from "./parts.js";
import { finish, forget, name as userName, signIn, signOut, token } from "./signin.js";
import * as tally from "./tally.js";
import * as top from "./top.js";

const PAGES = {
  "": { title: "Overview", load: () => overview },
  tally: { title: "Number", load: () => tally },
  top: { title: "Top", load: () => top },
  drift: { title: "Drift", load: () => drift },
  try: { title: "Try it", load: () => import("./tryit.js") },
};
const element = (id) => document.getElementById(id);
const page = element("page");
const api = new Api(token);
const zone = new EventTarget(); // fires `change` when the footer's button changes the zone of the times
let config;
let counters = []; // the declared counters, which Tally shows only to users
let leaving; // aborts when the user leaves the page that is shown
let wasSignedIn = false; // whether the API has refused a user's token, which may have expired

/** Returns what a page gets from the console. `signal` aborts when the page is left. `keepStatus` keeps `counters`. */
function contextOf(signal) {
  const counterNames = () => (counters.length ? counters.map((counter) => counter.name) : config.counters);
  const keepStatus = (status) => (counters = status.counters);
  const counter = (name) => counters.find((declared) => declared.name === name);
  // Reads the declared counters once a user is signed in. Returns whether this call has read them.
  const loadCounters = async () => {
    if (counters.length || !token()) return false;
    keepStatus(await api.get("status", {}, signal));
    return true;
  };
  return { config, api, zone, signal, counter, counterNames, keepStatus, loadCounters };
}

/** Shows the page that the hash names, or that there is no such page. */
async function route() {
  let params;
  try {
    params = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    params = [null]; // malformed percent-encoding: no page has this name
  }
  const [name, ...rest] = params;
  const target = Object.hasOwn(PAGES, name) && (name !== "try" || config.try_it) ? PAGES[name] : null;
  const isFirst = !leaving;
  leaving?.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  page.replaceChildren();
  showNavigation(name);
  try {
    if (target === null) {
      page.append(
        make("h1", { tabindex: -1 }, "There is no such page"),
        make("p", {}, make("a", { href: "#/" }, "To the overview")),
      );
    } else {
      const { show } = await target.load();
      if (signal.aborted) return;
      await show(page, contextOf(signal), ...rest);
    }
  } catch (error) {
    if (signal.aborted) return;
    console.error(error);
    page.replaceChildren(
      make("h1", { tabindex: -1 }, "This page failed"),
      make("p.error", { role: "alert" }, error.words ?? "Load it again."),
    );
  }
  if (signal.aborted) return;
  document.title = [...rest.reverse(), target !== PAGES.tally && target?.title, "Tally"].filter(Boolean).join(" · ");
  if (!isFirst) page.querySelector("h1")?.focus(); // so a screen reader reads the new heading
}

function showNavigation(current) {
  const listed = ["", "top", "drift", ...(config.try_it ? ["try"] : [])];
  const link = (name) =>
    make(
      "li",
      {},
      make("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, PAGES[name].title),
    );
  element("pages").replaceChildren(make("ul", {}, listed.map(link)));
}

/** Shows who is signed in and a button to sign out, or a button to sign in. */
function showUser() {
  const out = () => {
    signOut(config);
    counters = [];
    showUser();
    route(); // the page loads again, so the next user sees nothing of this one
  };
  element("who").replaceChildren(
    ...(token()
      ? [
          make("span.name", { title: userName() }, userName()),
          make("button.small", { type: "button", onclick: out }, "Sign out"),
        ]
      : [make("button.small", { type: "button", onclick: askToSignIn }, "Sign in")]),
  );
}

/** Shows the form to sign in above the page. Only after a click on the button, the form gets the focus. */
function askToSignIn(event) {
  if (!element("sign-in")) element("ask").replaceChildren(signInForm());
  if (event?.type === "click") element("sign-in").querySelector("input, button").focus();
}

function signInForm(reason = "") {
  const { kind } = config.sign_in;
  const problem = make("p.error", { role: "alert" }, reason);
  const input = make("input", {
    id: "given",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    type: kind === "token" ? "password" : "text",
  });
  const help = {
    name: "Any name will do: this stack runs on your machine.",
    token: "Paste a token of your issuer with the scope tally/read. It stays in the memory of this page.",
    pkce: "You sign in at your pool's page, and return to this page.",
  };
  const submit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await signIn(config, input.value.trim());
    } catch (error) {
      problem.textContent = error.message;
      return;
    }
    if (!token()) return; // the browser is on its way to the pool
    section.remove();
    showUser();
    api.reload();
    page.querySelector("h1")?.focus();
  };
  const section = make(
    "section.card.sign-in",
    { id: "sign-in", "aria-labelledby": "sign-in-head" },
    make("h2", { id: "sign-in-head" }, wasSignedIn ? "Sign in again" : "Sign in"),
    make("p.quiet", {}, help[kind]),
    make(
      "form.row",
      { onsubmit: submit },
      kind === "pkce"
        ? null
        : make("p.wide", {}, make("label", { for: "given" }, kind === "token" ? "Token" : "Your name"), input),
      make("p", {}, make("button", {}, "Sign in")),
    ),
    problem,
  );
  return section;
}

/** Shows whether the connection is lost, and from when the numbers are. */
function showConnection() {
  document.documentElement.toggleAttribute("data-lost", api.lost);
  const since = api.answeredAt ? ` The numbers are as of ${timeText(api.answeredAt, "clock")}.` : "";
  element("lost").replaceChildren(
    ...(api.lost ? [make("p", {}, make("strong", {}, "No connection to Tally."), `${since} Trying again…`)] : []),
  );
}

function showFooter() {
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

/** Loads the configuration, completes a sign-in, and shows a page. Without an answer, waits for the connection. */
async function begin() {
  try {
    config = await api.get("console/config.json");
  } catch (error) {
    page.replaceChildren(
      make("h1", {}, "Tally"),
      make("p.error", { role: "alert" }, error.words ?? "The console failed."),
    );
    api.addEventListener("reload", begin, { once: true });
    return;
  }
  let refused = ""; // why the sign-in at the pool failed
  await finish(config).catch((error) => (refused = error.message));
  element("stage").replaceChildren(
    ...[config.stage, make("span", {}, config.region && ` · ${config.region}`)].filter(Boolean),
  );
  showUser();
  showFooter();
  addEventListener("hashchange", route);
  api.addEventListener("refused", ({ detail }) => {
    wasSignedIn ||= Boolean(userName());
    if (detail.status === 401) forget();
    showUser();
    askToSignIn();
    if (detail.status === 403) element("sign-in").querySelector("[role=alert]").textContent = `${userName()}: ${detail.words}`;
  });
  await route();
  if (refused) element("ask").replaceChildren(signInForm(refused));
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the page
  element("main").focus();
});
api.addEventListener("connection", showConnection);
begin();
