/** The overview: the health of the stack, each counter's last day, and a form that opens any number. */

import { bars } from "./chart.js";
import { count, HOUR_S, number, signed, sumOf, time } from "./format.js";
import { isOfPages } from "../client/tally.js";
import { fullIdOf } from "./ids.js";
import { command, fullId, make, panel, share, spansOf, state, tallyLink } from "./parts.js";

const API = new URL("..", import.meta.url).href; // this file is /console/overview.js
const KEY = crypto.randomUUID(); // of the command for a first change: a panel that is drawn again shows the same key
const STATUS_S = 15;
const COUNTERS_S = 60;
const TOP = 5;
const EVENTS = 10;
const SHARED_MAX = 12; // if all ids of a list begin with more equal characters, a card leaves these characters out
const HEADS = { true: "All is well", false: "Action needed", null: "Some checks gave no answer" }; // by `well`
const SHOWN = { now: "exact, at once", soon: "exact, within seconds" }; // by `visible`

export async function show(root, context) {
  const { api, signal } = context;
  const [grid, unmovedLine] = [make("div.grid"), make("p.quiet")];
  const cards = make(
    "section",
    { "aria-labelledby": "counters", hidden: true },
    make("h2", { id: "counters" }, "Counters, the last 24 hours"),
    grid,
    unmovedLine,
  );
  const unmoved = new Map(); // the time up to which a counter had no change, by its name; null: no hour is written
  const noteMoved = (name, moved, asOf) => {
    if (moved) unmoved.delete(name);
    else unmoved.set(name, asOf);
    unmovedLine.replaceChildren(...unmovedWords(unmoved));
  };
  let names = ""; // of the counters whose cards are shown
  let eventsPanel; // exists if a counter has thresholds
  const status = panel(context, {
    title: "Health",
    kind: "status",
    everyS: STATUS_S,
    load: () => api.get("status", {}, signal),
    draw: (status) => {
      context.keepStatus(status);
      const withSeries = status.counters.filter((counter) => counter.counts !== "items");
      const newNames = withSeries.map((counter) => counter.name).join();
      if (newNames !== names) {
        names = newNames;
        cards.hidden = false;
        unmoved.clear();
        grid.replaceChildren(...withSeries.map((counter) => card(context, counter, noteMoved)));
      }
      if (!eventsPanel && status.counters.some((counter) => counter.notifies))
        cards.after((eventsPanel = crossings(context)));
      return [...health(context, status), isNew(status) && firstChange(context, status)];
    },
  });
  root.append(make("h1", { tabindex: -1 }, "Overview"), status, cards, opener(context));
}

/** Returns whether the stack is new: the judge has judged no minute yet, and no check is wrong. */
const isNew = (status) => !status.judged_up_to && status.well !== false;

/** Shows on a new stack how to count something. */
function firstChange(context, { counters }) {
  const open = counters.find(
    ({ changes, counts, delta, retired }) => changes === "anyone" && counts === "changes" && delta !== null && !retired,
  );
  const path = open && `counters/${open.name}/first/increments`;
  const curl = open && `curl -X POST ${API}${path} -H 'Idempotency-Key: ${KEY}'`;
  const tryIt = context.config.try_it && ["Or ", make("a", { href: "#/try" }, "try it"), " here."];
  const then = open && ["Then look at ", make("a", { href: tallyLink(open.name, "first") }, "its number"), ". "];
  return make(
    "div",
    {},
    make("p", {}, "Count something now. ", open ? "The key names one change: if you send it twice, Tally counts it once." : ""),
    open && command(curl, "a first change"),
    make("p", {}, then, tryIt),
  );
}

/** Returns a sentence with the counters that have no change. `unmoved`: as in `show`. */
function unmovedWords(unmoved) {
  if (!unmoved.size) return [];
  const names = [...unmoved.keys()].flatMap((name, place) => [
    place ? ", " : "",
    make("a", { href: `#/top/${encodeURIComponent(name)}` }, name),
  ]);
  const known = [...unmoved.values()];
  if (known.includes(null)) return ["No hour is written yet (a new stack needs some minutes): ", ...names, "."];
  return ["No change up to ", time(Math.min(...known), "hours"), " in: ", ...names, "."];
}

/** Shows whether all is well, and the checks. */
function health(context, status) {
  const wrong = status.parts.filter((part) => part.state === "wrong");
  const unknown = status.parts.filter((part) => part.state === "unknown");
  const listed = (words, parts) =>
    parts.length
      ? [` ${words}: `, ...parts.flatMap((part, place) => [place ? ", " : "", partLink(part), " (", section(context, part), ")"]), "."]
      : [];
  const reasons = [...listed("Action needed", wrong), ...listed("No answer", unknown)];
  const alarms = status.parts.find((part) => part.name === "alarms");
  const times = [
    status.judged_up_to ? ["Checked up to ", time(status.judged_up_to, "hours")] : "Nothing is checked yet",
    status.as_of ? ["rolled up as of ", time(status.as_of, "clock")] : "nothing is rolled up yet",
    alarms && `alarms: ${alarms.line}`,
    ["status of ", time(status.at, "clock")],
  ];
  const row = (part) =>
    make("li", {}, state(part.state), make("strong", {}, part.name), make("span.quiet", {}, part.line));
  const tone = wrong.length ? "wrong" : unknown.length ? "unknown" : "ok";
  return [
    make(
      "p",
      { class: `verdict ${tone}` },
      make("span.dot", { "aria-hidden": "true" }),
      make(
        "span",
        {},
        make("strong", {}, isNew(status) ? "This stack is new" : (HEADS[String(status.well)] ?? HEADS.null)),
        isNew(status) ? " Nothing is checked yet: a new stack needs some minutes." : reasons,
      ),
    ),
    make(
      "p.quiet.calm",
      {},
      times.filter(Boolean).flatMap((words, place) => [place ? " · " : "", words].flat()),
    ),
    make(
      "details",
      { "data-name": "parts" },
      make("summary", {}, `${count(status.parts.length, "check")}`),
      make("ul.parts", {}, status.parts.map(row)),
    ),
  ];
}

/** Returns a check's name, with a link if the console has a page about it. */
const partLink = ({ name }) => (name === "drift" ? make("a", { href: "#/drift" }, name) : name);

/** Returns the section of the docs about a check: a link if the deployment gives the address of the docs. */
function section({ config }, { see }) {
  const place = `${config.docs}/${see}`;
  return config.docs.startsWith("https://")
    ? make("a", { href: place, target: "_blank", rel: "noopener" }, "what to do")
    : make("code.id", {}, place);
}

/**
 * The card of a counter: its changes in the last day, and the ids that moved most. If the counter had no change, the
 * style sheet hides the card (`still`).
 */
function card(context, counter, noteMoved) {
  const { api, signal } = context;
  const name = encodeURIComponent(counter.name);
  const by = spansOf(counter).day ? "day" : "hour";
  const load = async () => {
    const [total, top] = await Promise.all([
      api.any("series", { of: name, by: "hour" }, signal),
      api.any("top", { counter: name, by, limit: TOP }, signal),
    ]);
    return { total, top };
  };
  const draw = ({ total, top }) => {
    const hasChanges = total.series.some((point) => point.value);
    const moved = hasChanges || top.top.length > 0;
    section.classList.toggle("still", !moved);
    noteMoved(counter.name, moved, total.as_of);
    const spark =
      total.series.length && hasChanges
        ? bars(total.series, { small: true, asOf: total.as_of, from: total.series.at(-1).from - 23 * HOUR_S })
        : make(
            "p.spark.none.quiet",
            {},
            total.as_of === null
              ? "No hour is written yet: a new stack needs some minutes."
              : "No change in these hours.",
          );
    return [
      make(
        "p.sum",
        {},
        make("strong", {}, total.as_of === null ? "–" : signed(sumOf(total.series))),
        make("span.quiet", {}, total.as_of === null ? "" : [" up to ", time(total.as_of, "hours")]),
      ),
      spark,
      leaders(counter.name, top),
    ];
  };
  const about = `${SHOWN[counter.visible]}${counter.retired ? ", retired" : ""}`;
  const section = panel(context, {
    title: make("a", { href: `#/top/${name}` }, counter.name),
    level: 3,
    kind: "counter still",
    everyS: COUNTERS_S,
    load,
    draw,
    tools: make("span.quiet.kind", {}, about),
  });
  return section;
}

/** The card of the newest threshold crossings, and whether each was sent to the event bus. Hidden without a crossing. */
function crossings(context) {
  const row = (event) =>
    make(
      "li",
      {},
      make("a", { href: tallyLink(event.counter, fullId(event)) }, `${event.counter} ${fullId(event)}`),
      ` ${event.direction === "up" ? "reached" : "fell below"} ${number(event.threshold)}`,
      event.percent === undefined ? "" : ` (${event.percent} % of ${number(event.limit)})`,
      make("span.quiet", {}, " ", time(event.at, "minute"), event.sent ? "" : ", not sent yet"),
    );
  const draw = ({ events }) => {
    section.hidden = !events.length;
    return make("ul", {}, events.map(row));
  };
  const load = () => context.api.get("events", { limit: EVENTS }, context.signal);
  const section = panel(context, { title: "Thresholds crossed", everyS: STATUS_S, load, draw });
  section.hidden = true;
  return section;
}

/** Lists the ids that moved most. `top`: the API's list of the newest day, or of the newest hour. */
function leaders(name, top) {
  if (!top.top.length) return make("p.quiet", {}, `The list of this ${top.by} is empty.`);
  const most = top.top[0].value;
  const shared = sharedLength(top.top.map(fullId));
  const row = (entry) =>
    make(
      "li",
      {},
      make(
        "a",
        { href: tallyLink(name, fullId(entry)), title: fullId(entry), "aria-label": fullId(entry) },
        shared ? `…${fullId(entry).slice(shared)}` : fullId(entry),
      ),
      make("span.figure", {}, number(entry.value)),
      share(entry.value / most),
    );
  const list = make("ol.leaders", { "aria-label": `Top ${TOP} of ${name}, ${top.span}` }, top.top.slice(0, TOP).map(row));
  return top.by === "day" ? list : make("div", {}, make("p.quiet", {}, "In the newest hour:"), list);
}

/**
 * Returns how many characters a card leaves out at the start of each id: the parts that all ids share, if these are longer
 * than SHARED_MAX. The separator after them stays, so the first page of a site is `…/`.
 */
function sharedLength(ids) {
  let same = 0;
  while (ids.length > 1 && same < ids[0].length && ids.every((id) => id[same] === ids[0][same])) same++;
  const parts = ids[0].slice(0, same).search(/[/:#._~@-][^/:#._~@-]*$/);
  return parts > SHARED_MAX ? parts : 0;
}

/** A form that opens any number. */
function opener(context) {
  const counter = make("input", {
    id: "open-counter",
    name: "counter",
    list: "counter-names",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const id = make("input", { id: "open-id", name: "id", required: true, autocomplete: "off", spellcheck: "false" });
  const names = make(
    "datalist",
    { id: "counter-names" },
    context.counterNames().map((name) => make("option", { value: name })),
  );
  const open = (event) => {
    event.preventDefault();
    const [name, text] = [counter.value.trim(), id.value.trim()];
    location.hash = tallyLink(name, isOfPages(name) ? text : fullIdOf(text));
  };
  return make(
    "section.card",
    { "aria-labelledby": "open" },
    make("h2", { id: "open" }, "Open a number"),
    make(
      "form.row",
      { onsubmit: open },
      make("p", {}, make("label", { for: "open-counter" }, "Counter"), counter, names),
      make("p.wide", {}, make("label", { for: "open-id" }, "Id, or the page's address"), id),
      make("p", {}, make("button", {}, "Open")),
    ),
  );
}
