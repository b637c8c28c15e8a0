/** The page of a counter's numbers that went up most in an hour, a day or a month. */

import { number, time, timeText } from "./format.js";
import { askWhich, choice, empty, fullId, make, panel, share, spansOf, table, tallyLink, tool } from "./parts.js";

const TOP_S = 60;
const LIMIT = 100;
const LENGTHS = { hour: 13, day: 10, month: 7 }; // characters of a span: 2026-11-28T10, 2026-11-28, 2026-11

/** Returns when a span in UTC begins, in seconds since 1970; `spanAt` returns the span that begins at a time. */
const beginOf = (span) =>
  Date.parse(span.length === 13 ? `${span}:00Z` : `${span}${span.length === 7 ? "-01" : ""}T00:00Z`) / 1000;
const spanAt = (at, by) => new Date(at * 1000).toISOString().slice(0, LENGTHS[by]);

/** Returns the span that is `steps` spans later; if `steps` is below 0, an earlier span. */
function spanAfter(span, by, steps) {
  const at = new Date(beginOf(span) * 1000);
  if (by === "hour") at.setUTCHours(at.getUTCHours() + steps);
  else if (by === "day") at.setUTCDate(at.getUTCDate() + steps);
  else at.setUTCMonth(at.getUTCMonth() + steps);
  return spanAt(at / 1000, by);
}

export async function show(root, context, counter = context.counterNames()[0]) {
  if (!counter) return root.append(...askWhich("counter"));
  const { api, signal } = context;
  // `span`: the span to ask for; null: the newest. `newest`: the newest span. `shownSpan`: the span of the shown list.
  let [by, span, newest] = ["day", null, null];
  const load = async () => {
    if (await context.loadCounters()) showTools();
    return api.any("top", { counter, by, span, limit: LIMIT }, signal, context.config.listed.includes(counter));
  };
  const where = make("p.span", { role: "status" });
  const draw = (list) => {
    if (span === null) newest = list.span;
    const shown = list.span;
    later.turn(shown && newest && shown < newest);
    earlier.turn(shown);
    where.replaceChildren(...(shown ? words(shown, by) : []));
    shownSpan = shown;
    if (!shown)
      return empty("No list yet.", "A new stack needs some minutes.");
    if (!list.top.length)
      return [
        empty("No increase.", "No number of this counter went up in this span."),
        asOf(list),
      ];
    const most = list.top[0].value;
    const row = (entry, rank) => [
      number(rank + 1),
      make("a.id", { href: tallyLink(counter, fullId(entry)) }, fullId(entry)),
      [share(entry.value / most), number(entry.value)],
    ];
    return [
      make("p", {}, error(list.error_max)),
      table(
        `Numbers of ${counter} that went up most`,
        [["#", "rank"], "Number", ["Change", "figure"]],
        list.top.map(row),
        "table.top",
      ),
      asOf(list),
    ];
  };
  let shownSpan = null;
  const go = (steps) => {
    span = spanAfter(shownSpan, by, steps);
    if (span >= newest) span = null;
    card.run();
  };
  const earlier = tool("Earlier", () => go(-1));
  const later = tool("Later", () => go(1));
  const chosen = (value) => {
    [by, span, newest] = [value, null, null];
    card.run();
  };
  const tools = make("div.tools");
  const showTools = () => {
    const spans = spansOf(context.counter(counter));
    if (!spans[by]) by = "hour";
    tools.replaceChildren(choice("Span", "span", spans, by, chosen), earlier, later);
  };
  showTools();
  const card = panel(context, { title: counter, kind: "tops", everyS: TOP_S, load, draw, tools });
  card.querySelector(".head").after(where);
  root.append(make("h1", { tabindex: -1 }, "Top"), counters(context, counter), card);
}

function counters(context, chosen) {
  const names = [...new Set([...context.counterNames(), chosen])];
  const link = (name) =>
    make(
      "li",
      {},
      make("a", { href: `#/top/${encodeURIComponent(name)}`, "aria-current": name === chosen ? "true" : null }, name),
    );
  return make("nav.tabs", { "aria-label": "Counters" }, make("ul", {}, names.map(link)));
}

/** Returns a span in words. */
function words(span, by) {
  const from = beginOf(span);
  if (by === "hour") return ["The hour from ", time(from, "hour")];
  return [timeText(from, by, "UTC"), make("span.quiet", {}, ` (a ${by} of UTC)`)];
}

/** Returns `error_max` in words. */
function error(most) {
  if (!most) return "Every value is exact.";
  const errors = `A value may be wrong by up to ${number(most)}, and a number outside the list may be that much above the last one`;
  return `${errors}, because this list is merged from the lists of its hours.`;
}

const asOf = (list) => (list.as_of ? make("p.quiet", {}, "As of ", time(list.as_of, "minute"), ".") : null);
