/** The building blocks of pages: elements, panels, polling. Text stays text: no function takes markup. */

import { timeText } from "./format.js";

/** Makes an element. `tag`: `div.card.wide`. An attribute `on…` is a listener; null and false leave an attribute out. */
export function make(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Returns whether an id is a page's address. `declared`: the counter, after a sign-in. No other id has a slash. */
export const isPage = (declared, id) => declared?.counts.startsWith("page") ?? id.includes("/");
export const countsVisitors = (declared) => declared?.counts.endsWith("visitors") ?? false;

/**
 * Returns the spans of a counter's top lists, with their names for people. Spans are in UTC.
 *
 * A visitor counts once in each period. So a span that has two periods would count some visitors twice, and is left out.
 */
export function spansOf(declared) {
  const { period, timezone } = declared ?? {};
  const unique = countsVisitors(declared);
  if (unique && (timezone ?? "UTC") !== "UTC") return { hour: "Hour" };
  return { hour: "Hour", day: "Day", ...(unique && ["day", "week"].includes(period) ? {} : { month: "Month" }) };
}

/** Returns the address of a number's page. */
export const tallyLink = (counter, id) => `#/tally/${encodeURIComponent(counter)}/${encodeURIComponent(id)}`;

/** Returns the id of a row as links have it: if the row has a period, `id#period`. */
export const fullId = (row) => (row.period ? `${row.id}#${row.period}` : row.id);

const STATES = { ok: "ok", wrong: "action needed", unknown: "no answer" };

/** Shows the state of a check in words. `state`: as in `GET /status`. */
export const state = (state = "unknown") => make("span", { class: `state ${state}` }, STATES[state] ?? state, " ");

/** The content of an empty card. */
export const empty = (head, words) =>
  make("p.empty", {}, make("strong", {}, head), make("br"), make("span.quiet", {}, words));

/** The content of a page whose address does not name its counter or number. `what`: "counter" or "number". */
export const askWhich = (what) => [
  make("h1", { tabindex: -1 }, `Which ${what}?`),
  make("p", {}, "Choose one on the ", make("a", { href: "#/" }, "overview"), "."),
];

/** A bar behind a row of a list. `part`: the row's value divided by the largest value in the list. */
export function share(part) {
  const bar = make("span.share", { "aria-hidden": "true" });
  bar.style.inlineSize = `${100 * part}%`;
  return bar;
}

/** A table with a caption. `heads`: text, or `[text, class]`. Cells are text or elements. */
export function table(caption, heads, rows, tag = "table") {
  const classes = heads.map((head) => (Array.isArray(head) ? head[1] : ""));
  const cells = (row) =>
    row.map((cell, at) => make(at ? "td" : "th", { class: classes[at] || null, scope: at ? null : "row" }, cell));
  return make(
    tag,
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

/** Radio buttons side by side. `options`: `{value: label}`. `chosen(value)` is called after a choice. */
export function choice(label, name, options, value, chosen) {
  const radio = ([option, text]) => {
    const input = make("input", { type: "radio", name, value: option, checked: option === value });
    input.addEventListener("change", () => chosen(option));
    return make("label", {}, input, make("span", {}, text));
  };
  return make("fieldset.choice", {}, make("legend.quiet", {}, label), Object.entries(options).map(radio));
}

/** A button in a row of tools. `turn(on)` enables or disables it, without `disabled`, which would end its focus. */
export function tool(label, onPress) {
  const button = make("button.small", { type: "button", "aria-disabled": "true" }, label);
  button.addEventListener("click", () => button.ariaDisabled === "true" || onPress());
  button.turn = (on) => (button.ariaDisabled = on ? null : "true");
  return button;
}

/** A command with a button that copies it. */
export function command(text, label) {
  const result = make("span.said", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      result.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      result.textContent = "Selected: press Ctrl or ⌘ and C";
    }
    setTimeout(() => (result.textContent = ""), 4000);
  };
  const code = make("code", {}, text);
  const button = make("button.small", { type: "button", "aria-label": `Copy: ${label}`, onclick: copy }, "Copy");
  return make(
    "div.command",
    {},
    make("pre", { tabindex: 0, role: "group", "aria-label": label }, code),
    make("p", {}, button, result),
  );
}

/** Quotes a text as one word of a shell. */
const quoted = (text) => (/^[\w/:.,@%+=][\w/:.,@%+=~-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Returns the command that repairs a number. `watched`: the attribute of the team number that the counter checks. */
export function repairCommand(config, counter, id, watched) {
  const where =
    config.sign_in.kind === "name" ? `--local --port ${location.port || 80}` : `--stack ${quoted(config.stack)}`;
  // Tally never writes a team number. This command prints the correction that the team makes.
  if (watched) return `tally check --only drift ${where}`;
  // After `--` no word is an option.
  const dashes = id.startsWith("-") ? "-- " : "";
  return `tally repair ${where} --by "$(whoami)" --why 'WHY' ${dashes}${quoted(counter)} ${quoted(id)}`;
}

/**
 * Runs `task` now and every `everyS` seconds while the page is visible and connected. Returns a function that runs it.
 *
 * If the task returns false, it runs next when the page becomes visible, or at the event `reload`.
 */
export function poll(context, everyS, task) {
  let timer,
    running = false,
    runAgain = false;
  async function run() {
    clearTimeout(timer);
    if (context.signal.aborted || document.hidden || context.api.lost) return;
    if (running) return void (runAgain = true);
    running = true;
    const continues = await task();
    running = false;
    if (runAgain) return void ((runAgain = false), run());
    if (continues !== false) timer = setTimeout(run, everyS * 1000);
  }
  context.signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", run, { signal: context.signal });
  context.api.addEventListener("reload", run, { signal: context.signal });
  run();
  return run;
}

let panels = 0;

/**
 * A card that loads its own data. If a load fails, the card keeps the old data and shows that they are old.
 *
 * `load()` returns the data. When the data have changed, `draw(data)` returns the elements, or null if `draw` has put
 * them into the page. `kind`: more classes. `level`: of the heading. `everyS`: seconds between two loads. `tools`:
 * elements beside the title.
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
    hasData = false,
    refused = false;
  // Returns whether to load the data again after `everyS`.
  async function task() {
    if (refused) note.replaceChildren(loading()); // a user may have signed in
    refused = false;
    try {
      const data = await load();
      if (context.signal.aborted) return false;
      const text = JSON.stringify(data) ?? "";
      note.replaceChildren();
      delete section.dataset.old;
      aged.textContent = `old: from ${timeText(Date.now() / 1000, "clock")}`;
      if (!hasData || text !== last) redraw(body, draw(data));
      [last, hasData] = [text, true];
      return true;
    } catch (error) {
      if (context.signal.aborted) return false;
      if (!error.words) console.error(error);
      refused = error.refused;
      if (hasData) section.dataset.old = "";
      if (error.lost && hasData) return true; // the top of the page says that the connection is lost
      note.replaceChildren(
        make(error.refused ? "p.quiet" : "p.error", {}, error.words ?? "This part of the page failed."),
        error.refused ? "" : make("p", {}, make("button.small", { type: "button", onclick: () => section.run() }, "Try again")),
      );
      return !(error.status >= 400 && error.status < 500 && error.status !== 429); // the same request would get the same answer
    }
  }
  section.run = poll(context, everyS, task);
  return section;
}

/** Replaces the elements of a card. Open details stay open, and the focus stays in its place. */
function redraw(body, elements) {
  if (elements === null) return;
  const open = new Set([...body.querySelectorAll("details[open]")].map((details) => details.dataset.name));
  const focus = body.contains(document.activeElement) ? document.activeElement : null;
  const place = focus && [...body.querySelectorAll(focus.localName)].indexOf(focus);
  body.replaceChildren(...[elements].flat().filter(Boolean));
  for (const details of body.querySelectorAll("details")) if (open.has(details.dataset.name)) details.open = true;
  if (focus && !body.contains(document.activeElement)) body.querySelectorAll(focus.localName)[place]?.focus();
}
