/** What every page is made of: elements, panels, polling. Text goes in as text: nothing here takes markup. */

import { timeText } from "./format.js";

/** An element. `tag`: `div.card.wide`. Attributes that begin with `on` are listeners; null and false leave one out. */
export function make(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Whether an id is a page's address. Who is not signed in does not know what a counter counts; no other id has a slash. */
export const isPage = (declared, id) => declared?.counts.startsWith("page") ?? id.includes("/");
export const countsVisitors = (declared) => declared?.counts.endsWith("visitors") ?? false;

/**
 * The spans of which a counter has lists, and their names for people. Lists are those of UTC.
 *
 * No span holds two periods of a counter of visitors: that would count some of them twice.
 */
export function spansOf(declared) {
  const { period, timezone } = declared ?? {};
  const unique = countsVisitors(declared);
  if (unique && (timezone ?? "UTC") !== "UTC") return { hour: "Hour" };
  return { hour: "Hour", day: "Day", ...(unique && ["day", "week"].includes(period) ? {} : { month: "Month" }) };
}

/** The address of a number's page. */
export const tallyLink = (counter, id) => `#/tally/${encodeURIComponent(counter)}/${encodeURIComponent(id)}`;

/** The id of a row as links name it: with its period, if it has one. */
export const fullId = (row) => (row.period ? `${row.id}#${row.period}` : row.id);

const STATES = { ok: "ok", wrong: "action needed", unknown: "no answer" };

/** How a part of the stack is, in a word. `state`: as `GET /status` says it. */
export const state = (state = "unknown") => make("span", { class: `state ${state}` }, STATES[state] ?? state, " ");

/** What a card says that has nothing to show. */
export const empty = (head, words) =>
  make("p.empty", {}, make("strong", {}, head), make("br"), make("span.quiet", {}, words));

/** What a page shows whose address does not say of which `what` it is. */
export const which = (what) => [
  make("h1", { tabindex: -1 }, `Which ${what}?`),
  make("p", {}, "Choose one on the ", make("a", { href: "#/" }, "overview"), "."),
];

/** A bar behind a row: its part of the largest one, by the style of that side. */
export function share(part) {
  const made = make("span.share", { "aria-hidden": "true" });
  made.style.inlineSize = `${100 * part}%`;
  return made;
}

/** A table with a caption. `heads`: text, or `[text, class]`. Cells are text or elements. */
export function table(caption, heads, rows, name = "table") {
  const classes = heads.map((head) => (Array.isArray(head) ? head[1] : ""));
  const cells = (row) =>
    row.map((cell, at) => make(at ? "td" : "th", { class: classes[at] || null, scope: at ? null : "row" }, cell));
  return make(
    name,
    {},
    make("caption", {}, caption),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        heads.map((head, at) => make("th", { scope: "col", class: classes[at] || null }, [head].flat()[0])),
      ),
    ),
    make(
      "tbody",
      {},
      rows.map((row) => make("tr", {}, cells(row))),
    ),
  );
}

/** Radio buttons side by side. `options`: `{value: label}`. `chosen(value)` follows a choice. */
export function choice(label, name, options, value, chosen) {
  const one = ([option, text]) => {
    const input = make("input", { type: "radio", name, value: option, checked: option === value });
    input.addEventListener("change", () => chosen(option));
    return make("label", {}, input, make("span", {}, text));
  };
  return make("fieldset.choice", {}, make("legend.quiet", {}, label), Object.entries(options).map(one));
}

/** A button of a row of tools. One that is off keeps the focus, which `disabled` would take away. */
export function tool(label, pressed) {
  const made = make("button.small", { type: "button", "aria-disabled": "true" }, label);
  made.addEventListener("click", () => made.ariaDisabled === "true" || pressed());
  made.turn = (on) => (made.ariaDisabled = on ? null : "true");
  return made;
}

/** A command with a button that copies it. */
export function command(text, label) {
  const said = make("span.said", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: press Ctrl or ⌘ and C";
    }
    setTimeout(() => (said.textContent = ""), 4000);
  };
  const code = make("code", {}, text);
  const button = make("button.small", { type: "button", "aria-label": `Copy: ${label}`, onclick: copy }, "Copy");
  return make(
    "div.command",
    {},
    make("pre", { tabindex: 0, role: "group", "aria-label": label }, code),
    make("p", {}, button, said),
  );
}

/** Text as one word of a shell. Ids may hold anything: pages do. */
const quoted = (text) => (/^[\w/:.,@%+=][\w/:.,@%+=~-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that repairs a number of this stack. */
export function repairCommand(config, counter, id, watched) {
  const where =
    config.sign_in.kind === "name" ? `--local --port ${location.port || 80}` : `--stack ${quoted(config.stack)}`;
  if (watched) return `tally check --only drift ${where}`; // it prints the command: Tally writes no number of the team's
  const dashes = id.startsWith("-") ? "-- " : "";
  return `tally repair ${where} --by "$(whoami)" --why 'WHY' ${dashes}${quoted(counter)} ${quoted(id)}`;
}

/**
 * Run `task` now and every `everyS` seconds while the page is visible and connected. Returns a function that runs it now.
 *
 * A task that answers false stops it until everything is loaded again.
 */
export function poll(context, everyS, task) {
  let timer,
    running = false,
    again = false;
  async function run() {
    clearTimeout(timer);
    if (context.signal.aborted || document.hidden || context.api.lost) return;
    if (running) return void (again = true);
    running = true;
    const goesOn = await task();
    running = false;
    if (again) return void ((again = false), run());
    if (goesOn !== false) timer = setTimeout(run, everyS * 1000);
  }
  context.signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", run, { signal: context.signal });
  context.api.addEventListener("again", run, { signal: context.signal });
  run();
  return run;
}

let panels = 0;

/**
 * A card that loads itself, keeps what it had while it cannot, and says so.
 *
 * `load()` gives the data. `draw(data)` gives the elements, or null if the card draws itself; it is called when the data
 * has changed. `everyS`: seconds between two loads. `tools`: elements beside the title.
 */
export function panel(context, { title, kind = "", level = 2, everyS = 60, load, draw, tools = null }) {
  const id = `panel-${++panels}`;
  const aged = make("span.aged");
  const heading = make(`h${level}`, { id }, title);
  const loading = () => make("p.quiet.loading", {}, "Loading…");
  const note = make("div.note", { role: "status" }, loading());
  const body = make("div.body");
  const section = make(
    "section",
    { class: `card ${kind}`.trim(), "aria-labelledby": id },
    make("div.head", {}, heading, aged, tools),
    note,
    body,
  );
  let last,
    has = false,
    refused = false;
  async function task() {
    if (refused) note.replaceChildren(loading()); // somebody may be signed in by now
    refused = false;
    try {
      const data = await load();
      if (context.signal.aborted) return false;
      const text = JSON.stringify(data) ?? "";
      note.replaceChildren();
      delete section.dataset.old;
      aged.textContent = `old: from ${timeText(Date.now() / 1000, "clock")}`;
      if (!has || text !== last) redraw(body, draw(data));
      [last, has] = [text, true];
      return true;
    } catch (error) {
      if (context.signal.aborted) return false;
      if (!error.words) console.error(error);
      refused = error.refused;
      if (has) section.dataset.old = "";
      if (error.lost && has) return true; // the page says it once
      note.replaceChildren(
        make(error.refused ? "p.quiet" : "p.error", {}, error.words ?? "This part of the page failed."),
        error.refused ? "" : make("p", {}, make("button.small", { type: "button", onclick: () => section.run() }, "Try again")),
      );
      return !(error.status >= 400 && error.status < 500 && error.status !== 429); // the same again gets the same answer
    }
  }
  section.run = poll(context, everyS, task);
  return section;
}

/** Put new elements in, with what was open still open and what had the focus still with it. */
function redraw(body, made) {
  if (made === null) return;
  const open = new Set([...body.querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const focus = body.contains(document.activeElement) ? document.activeElement : null;
  const place = focus && [...body.querySelectorAll(focus.localName)].indexOf(focus);
  body.replaceChildren(...[made].flat().filter(Boolean));
  for (const one of body.querySelectorAll("details")) if (open.has(one.dataset.name)) one.open = true;
  if (focus && !body.contains(document.activeElement)) body.querySelectorAll(focus.localName)[place]?.focus();
}
