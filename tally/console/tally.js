/** The page of one number: its live value, its chart, its shards, the receipt of a key, its drift and its repairs. */

import { Failure } from "./api.js";
import { bars } from "./chart.js";
import { count, DAY_S, dayZone, HOUR_S, inUtc, number, signed, sumOf, time, timeText, zoneName } from "./format.js";
import { nameOf } from "./ids.js";
import { receipts } from "./receipts.js";
import { askWhich, choice, command, countsVisitors, isPage, make, panel, repairCommand, table, tool } from "./parts.js";

const VALUE_S = 2; // seconds between two reads of the value
const DETAILS_S = 15; // seconds between two reads of the details
const SERIES_S = 60; // seconds between two reads of the series
const SPOKEN_S = 30; // seconds between two announcements of the live number
const WINDOWS = { hour: 24 * HOUR_S, day: 30 * DAY_S };
const HOW = { ledger: "by its drift", recount: "by its children", rebuild: "by its receipts" };

export async function show(root, context, counter, id) {
  if (!counter || !id) return root.append(...askWhich("number"));
  const [now, keepDetails] = live(context, counter, id);
  root.append(
    make("p.eyebrow", {}, make("a", { href: `#/top/${encodeURIComponent(counter)}` }, counter)),
    make("h1.id", { tabindex: -1, title: id }, nameOf(id)),
    make("div.columns", {}, now, receipts(context, counter, id)),
    context.counter(counter)?.counts === "items" ? "" : chart(context, counter, id), // items have no series
    detailsPanel(context, counter, id, keepDetails),
  );
}

/** Returns `[id, period]` of the `ID#PERIOD` in a link. An id that is a page's address may have a `#`, and has no period. */
const parts = (context, counter, id) => (isPage(context.counter(counter), id) ? [id] : id.split("#"));

/**
 * Returns the card of the live number, and the function that takes the details of the number. The card reads the number
 * every two seconds while the page is visible. An ETag makes a read without a change cheap.
 */
function live(context, counter, id) {
  const { api, signal } = context;
  const [figure, used, note, moved] = [make("p.live"), make("p.used"), make("p.quiet"), make("p.quiet")];
  const announcement = make("p.hidden", { "aria-live": "polite" });
  let [tag, first, last, details, announcedAt] = [undefined, undefined, undefined, null, 0]; // tag: the ETag; first: a value; last: an answer
  const showNote = () => {
    if (last) note.replaceChildren(...verdict(last.value, details, context.counter(counter)?.watched), ...completeUpTo(last.as_of));
  };
  const keepDetails = (newDetails) => {
    details = newDetails;
    showNote();
  };
  const load = async () => {
    const [bare, period] = parts(context, counter, id);
    const path = `counters/${encodeURIComponent(counter)}/${encodeURIComponent(bare)}`;
    const [where, query] = isPage(context.counter(counter), id) ? ["tallies", { of: `${counter}:${id}` }] : [path, { period }];
    const answer = await api.getWithTag(where, query, tag, signal);
    tag = answer.tag ?? undefined;
    if (answer.body) last = answer.body.tallies ? answer.body.tallies[0] : answer.body;
    if (last.error) throw Failure.of(last.error.status, last.error);
    return last;
  };
  const draw = (tally) => {
    const { value } = tally;
    if ("limit" in tally) used.replaceChildren(...meter(tally, context.counter(counter)));
    if (figure.textContent !== number(value)) {
      if (first !== undefined) figure.classList.toggle("moved", true);
      figure.textContent = number(value);
      figure.classList.toggle("long", figure.textContent.length > 11);
      first ??= value;
      moved.textContent = value === first ? "" : `${signed(value - first)} since you opened this page`;
      const now = Date.now() / 1000;
      if (now - announcedAt >= SPOKEN_S) {
        announcement.textContent = `${counter}: ${number(value)}`;
        announcedAt = now;
      }
    }
    showNote();
    return null;
  };
  figure.addEventListener("animationend", () => figure.classList.remove("moved"));
  const card = panel(context, { title: "Now", kind: "now", everyS: VALUE_S, load, draw });
  card.querySelector(".body").append(figure, used, moved, note, announcement);
  return [card, keepDetails];
}

/** Returns how much of an id's limit is used and left. If a counter has no ceiling, the limit is its floor. */
function meter({ value, limit, left, resets_at: ends }, declared) {
  const rest = left < 0 ? `${number(-left)} beyond the limit` : `${number(left)} left`;
  const until = [" ", rest, ...(ends ? [" until ", time(ends, "minute")] : []), "."];
  if (declared && declared.ceiling === null) return [`The floor is ${number(limit)}.`, ...until];
  const words = `${number(value)} of ${number(limit)} used`;
  const bar = make("meter", { max: Math.max(limit, 1), value: Math.max(value, 0), "aria-label": words });
  return [bar, ` ${words}.`, ...until];
}

/**
 * Returns words that say whether the number is right. `details`: null until they are loaded. `watched`: the attribute of
 * the team number that Tally checks. If the counter has it, drift is the difference of the team number, not of `value`.
 */
function verdict(value, details, watched) {
  if (!details) return ["The stored number. Sign in to see whether it is right."];
  const { drift, shards, judged_up_to: until } = details;
  if (drift && watched) return [make("strong.alert", {}, `${watched} differs from its items by ${signed(drift.drift)}.`)];
  if (drift) {
    const sizes = `${number(value)} stored, ${number(value - drift.drift)} accepted`;
    const unconfirmed = drift.confirmed ? "" : ", not confirmed yet";
    return [make("strong.alert", {}, `${sizes}: drifts by ${signed(drift.drift)}${unconfirmed}.`)];
  }
  if (!shards.length) return ["Never counted, or removed: nothing is stored under this id."];
  return until ? ["Right, checked up to ", time(until, "minute"), "."] : ["The stored number: nothing is checked yet."];
}

/** Returns the time up to which the number has every change; nothing if each change is visible at once. */
const completeUpTo = (asOf) => (asOf ? [" Every change accepted by ", time(asOf, "clock"), " is in it."] : []);

/** The chart by hour or by day, and the same numbers as a table. */
function chart(context, counter, id) {
  const { api, signal } = context;
  let [by, back] = ["hour", 0]; // back: how many windows (WINDOWS) the shown window ends before now
  const visitors = countsVisitors(context.counter(counter));
  const hover = make("p.hover.quiet", { "aria-hidden": "true" }, "\u00a0");
  const load = async () => {
    const end = Math.ceil(Date.now() / 1000 / HOUR_S) * HOUR_S - back * WINDOWS[by];
    const from = end - WINDOWS[by] + (by === "day" ? DAY_S : 0); // the current day is one of the days
    const of = `${counter}:${parts(context, counter, id)[0]}`;
    const tz = by === "day" && !visitors ? dayZone() : null; // a visitor counts once for each day of UTC, and a day of another zone has parts of two
    const answer = await api.any("series", { of, by, from, to: end, tz }, signal);
    return { ...answer, from, zone: zoneName() }; // so that the panel is drawn again if the zone changes: it compares the data
  };
  const draw = (answer) => {
    const sum = sumOf(answer.series);
    if (answer.as_of === null)
      return [make("p.quiet", {}, "No hour is written yet: a new stack needs some minutes.")];
    if (!answer.series.length)
      return [make("p.quiet", {}, "No data in this span: hours are kept since ", time(answer.since, "minute"), ".")];
    const isNewest = back === 0;
    const hovered = (point) =>
      (hover.textContent = point ? `${timeText(point.from, by)}: ${signed(point.value)}` : "\u00a0");
    return [
      make(
        "p.sum",
        {},
        make("strong", {}, number(sum)),
        make(
          "span.quiet",
          {},
          `${visitors ? " first visits" : ""} in ${count(answer.series.length, by)}, up to `,
          time(Math.min(answer.as_of, answer.series.at(-1).from + (by === "hour" ? HOUR_S : DAY_S)), "minute"),
        ),
      ),
      bars(answer.series, { by, asOf: answer.as_of, repairs: answer.repairs, hovered, from: answer.from }),
      hover,
      legend(answer, by, isNewest),
      context.counter(counter)?.period ? make("p.quiet", {}, "The periods of this id are one series.") : "",
      make(
        "details",
        { "data-name": "table" },
        make("summary", {}, "Show as a table"),
        make("div.scroll", { tabindex: 0, role: "group", "aria-label": "The chart as a table" }, numbers(answer, by)),
        answer.imports.length > 0 && imports(answer.imports),
      ),
    ];
  };
  const move = (step) => {
    back = Math.max(0, back + step);
    later.turn(back > 0);
    body.run();
  };
  const later = tool("Later", () => move(-1));
  const earlier = tool("Earlier", () => move(1));
  earlier.turn(true);
  const chosen = (value) => {
    [by, back] = [value, 0];
    move(0);
  };
  const spans = choice("Bars", "by", { hour: "By hour", day: "By day" }, by, chosen);
  const tools = make("div.tools", {}, spans, earlier, later);
  const body = panel(context, { title: "History", kind: "moves", everyS: SERIES_S, load, draw, tools });
  context.zone.addEventListener("change", () => body.run(), { signal });
  return body;
}

function legend(answer, by, isNewest) {
  const last = answer.series.at(-1);
  const length = by === "hour" ? HOUR_S : DAY_S;
  const isRunning = isNewest && answer.as_of < last.from + length;
  const zone = by === "day" ? dayZone() : zoneName();
  return make(
    "ul.legend",
    {},
    isRunning &&
      make(
        "li",
        {},
        make("span.key.soft", { "aria-hidden": "true" }),
        `The current ${by}, up to `,
        time(answer.as_of, "hours"),
      ),
    answer.imports.length > 0 &&
      make(
        "li",
        {},
        `Import of ${signed(sumOf(answer.imports))} into ${count(answer.imports.length, "day")}`,
        ", not traffic: the bars do not include it",
      ),
    answer.repairs.map((one) =>
      make(
        "li",
        {},
        make("span.key.diamond", { "aria-hidden": "true" }),
        "Repair of ",
        signed(one.value),
        ", ",
        time(one.at, "minute"),
        ", not traffic: the bars do not include it",
      ),
    ),
    answer.since > answer.from && make("li", {}, "Hours are kept since ", time(answer.since, "minute")),
    make("li", {}, by === "day" ? `Days of ${zone}` : `Hours in ${zone}`),
  );
}

function numbers(answer, by) {
  const rows = answer.series.map((point) => [
    time(point.from, by),
    inUtc() ? "" : timeText(point.from, by, "UTC"),
    number(point.value),
  ]);
  return table(
    `By the ${by}, the newest last`,
    [`${by === "hour" ? "Hour" : "Day"} from`, "In UTC", ["Change", "figure"]],
    rows,
  );
}

/** The table of the days into which rows were imported. */
const imports = (days) =>
  table(
    "Imports by day, the newest last: they are not traffic",
    ["Day in UTC", ["Import", "figure"]],
    days.map((one) => [timeText(one.from, "day", "UTC"), signed(one.value)]),
  );

/** The details of a number: shards, drift, imports and repairs. */
function detailsPanel(context, counter, id, keepDetails) {
  const [bare, period] = parts(context, counter, id);
  const load = () => context.api.get("details", { counter, id: bare, period }, context.signal);
  const draw = (details) => {
    keepDetails(details);
    return [
      make(
        "div.columns",
        {},
        make("div", {}, make("h3", {}, "Shards"), shards(details.shards)),
        make("div", {}, make("h3", {}, "Drift"), drift(context, counter, id, details)),
      ),
      make("h3", {}, "Imports"),
      make("p", {}, imported(details, context.counter(counter)?.period)),
      make("h3", {}, "Repairs"),
      repairs(details.repairs),
    ];
  };
  return panel(context, { title: "Details", everyS: DETAILS_S, load, draw });
}

function shards(items) {
  if (!items.length) return make("p.quiet", {}, "Nothing is stored.");
  const note =
    items.length === 1
      ? "One item holds the whole number."
      : `The number is the sum of ${count(items.length, "item")}, so that many requests can write at the same time.`;
  return [
    make("p.quiet", {}, note),
    table(
      `${count(items.length, "shard")} of this number`,
      ["Shard", ["Value", "figure"]],
      items.map((one) => [number(one.shard), number(one.value)]),
    ),
  ];
}

function drift(context, counter, id, details) {
  const judged = details.judged_up_to
    ? ["Checked up to ", time(details.judged_up_to, "minute"), "."]
    : ["Nothing is checked yet: a new stack needs some minutes."];
  if (!details.drift) return make("p", {}, details.judged_up_to ? "None. " : "", make("span.quiet", {}, judged));
  const { drift: amount, since, confirmed } = details.drift;
  const watched = context.counter(counter)?.watched;
  const [more, less] = watched
    ? [`${watched} is higher than the sum of its items`, `${watched} is lower than the sum of its items`]
    : ["more is stored than was accepted", "less is stored than was accepted"];
  return [
    make(
      "p.alert",
      {},
      make("strong", {}, `${signed(amount)}: `),
      amount > 0 ? more : less,
      since ? [", since ", time(since, "minute")] : "",
      ". ",
      confirmed ? "Confirmed." : "Not confirmed yet: it may return to 0 without a repair.",
    ),
    make("p.quiet", {}, judged),
    command(repairCommand(context.config, counter, id, watched), `the repair of ${counter} ${id}`),
  ];
}

/** Returns how much of the number was imported, and up to when that is known. */
function imported({ imported: facts }, period) {
  const unknown = period ? "The series includes the imports of all periods." : "Not known yet: no hour is written.";
  if (!facts) return make("span.quiet", {}, unknown);
  const until = make("span.quiet", {}, "Known up to ", time(facts.as_of, "minute"), ".");
  if (!facts.amount) return ["None. ", until];
  const who = [" By whom and why: ", make("code", {}, "tally history --imports")];
  return [make("strong", {}, signed(facts.amount)), ". ", until, who];
}

function repairs(entries) {
  if (!entries.length) return make("p.quiet", {}, "No repairs.");
  const rows = entries.map((one) => [
    time(one.at, "minute"),
    signed(one.amount),
    one.who,
    one.why,
    HOW[one.how] ?? one.how,
  ]);
  return make(
    "div.scroll",
    { tabindex: 0, role: "group", "aria-label": "Repairs" },
    table("Repairs of this number", ["When", ["Change", "figure"], "Who", "Why", "How"], rows, "table.roomy"),
  );
}
