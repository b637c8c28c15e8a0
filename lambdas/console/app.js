// The console: shows the page that the hash names, and signs in.

import * as api from "/console/api.js";
import { finish, name, signIn, signOut, token } from "/console/signin.js";

const PAGES = { "": "overview", tally: "tally", top: "top", drift: "drift", try: "tryit" };
const [header, main] = [document.querySelector("header"), document.querySelector("main")];
let config, leave = () => {};

/** An element with attributes and children. Texts are texts, never HTML. */
export function made(tag, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

async function route() {
  const [page, ...params] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  leave();
  leave = () => {};
  main.replaceChildren();
  if (!token()) return main.append(signInForm());
  try {
    const { show } = await import(`/console/${PAGES[page] || "overview"}.js`);
    leave = (await show(main, { config, api }, ...params)) || leave;
  } catch (error) {
    main.replaceChildren(made("p", { role: "alert", textContent: error.message }));
  }
}

function nav() {
  const out = made("button", { type: "button", textContent: `Sign out ${name()}`, onclick: () => (signOut(config), draw()) });
  header.replaceChildren(made("a", { href: "#/", textContent: `Tally ${config.stage}` }), " ", token() ? out : "");
}

function signInForm(reason = "") {
  const said = made("p", { role: "alert", textContent: reason });
  const input = made("input", { id: "given", name: "given", required: true, autocomplete: "off" });
  const label = made("label", { htmlFor: "given", textContent: config.sign_in.kind === "name" ? "Your name" : "A token" });
  const form = made("form", {}, ...(config.sign_in.kind === "pkce" ? [] : [label, " ", input, " "]), made("button", {}, "Sign in"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn(config, input.value);
      if (token()) draw();
    } catch (error) {
      said.textContent = error.message;
    }
  });
  return form;
}

function draw() {
  nav();
  return route();
}

config = await api.get("/console/config.json");
let refused = "";
await finish(config).catch((error) => (refused = error.message));
addEventListener("hashchange", route);
await draw();
if (refused) main.replaceChildren(signInForm(refused));
