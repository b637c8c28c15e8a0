/** The overview: whether all is well, each counter's last day, and a form that opens any number. */

import { bars } from "./chart.js";
import { count, HOUR_S, number, signed, sumOf, time } from "./format.js";
import { isOfPages } from "../client/tally.js";
import { fullIdOf } from "./ids.js";
import { command, fullId, make, panel, share, spansOf, state, tallyLink } from "./parts.js";

const API = new URL("..", import.meta.url).href; // this file is /console/overview.js
const KEY = crypto.randomUUID(); // one for the page: the panel is drawn again and again
const STATUS_S = 15;
const COUNTERS_S = 60;
const TOP = 5;
const EVENTS = 10;
const SHARED_MAX = 12; // characters that every id of a list may begin with, and a phone still tells them apart
const HEADS = { true: "All is well", false: "Action needed", null: "Some checks gave no answer" };
const SHOWN = { now: "exact, at once", soon: "exact, within seconds" };

export async function show(root, context) {
  const { api, signal } = context;
  const [grid, still] = [make("div.grid"), make("p.quiet")];
  const cards = make(
    "section",
    { "aria-labelledby": "counters", hidden: true },
    make("h2", { id: "counters" }, "Counters, the last 24 hours"),
    grid,
    still,
  );
  const unmoved = new Map(); // the counters that did not move, and up to when that is known (null: not yet)
  const moves = (name, moved, asOf) => {
    if (moved) unmoved.delete(name);
    else unmoved.set(name, asOf);
    still.replaceChildren(...resting(unmoved));
  };
  let names = "";
  let crossed; // the panel of events, where a counter makes some
  const status = panel(context, {
    title: "Health",
    kind: "status",
    everyS: STATUS_S,
    load: () => api.get("status", {}, signal),
    draw: (found) => {
      context.knows(found);
      const moving = found.counters.filter((counter) => counter.counts !== "items"); // the others have no series
      const now = moving.map((counter) => counter.name).join();
      if (now !== names) {
        names = now;
        cards.hidden = false;
        unmoved.clear();
        grid.replaceChildren(...moving.map((counter) => card(context, counter, moves)));
      }
      if (!crossed && found.counters.some((counter) => counter.notifies)) cards.after((crossed = crossings(context)));
      return [...health(context, found), isNew(found) && first(context, found)];
    },
  });
  root.append(make("h1", { tabindex: -1 }, "Overview"), status, cards, opener(context));
}

/** Whether nothing is known yet, and nothing is wrong. */
const isNew = (found) => !found.judged_up_to && found.well !== false;

/** What to do while nothing is known: count something. */
function first(context, { counters }) {
  const open = counters.find((one) => one.changes === "anyone" && one.counts === "changes" && one.delta !== null && !one.retired);
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

/** The counters that did not move, in a sentence that says up to when: what was counted since is not known yet. */
function resting(unmoved) {
  if (!unmoved.size) return [];
  const names = [...unmoved.keys()].flatMap((name, place) => [
    place ? ", " : "",
    make("a", { href: `#/top/${encodeURIComponent(name)}` }, name),
  ]);
  const known = [...unmoved.values()];
  if (known.includes(null)) return ["No hour is written yet (a new stack needs some minutes): ", ...names, "."];
  return ["No change up to ", time(Math.min(...known), "hours"), " in: ", ...names, "."];
}

/** The line that says whether all is well, and the parts behind it. */
function health(context, found) {
  const wrong = found.parts.filter((part) => part.state === "wrong");
  const unknown = found.parts.filter((part) => part.state === "unknown");
  const named = (words, parts) =>
    parts.length
      ? [` ${words}: `, ...parts.flatMap((part, place) => [place ? ", " : "", partLink(part), " (", section(context, part), ")"]), "."]
      : [];
  const why = [...named("Action needed", wrong), ...named("No answer", unknown)];
  const alarms = found.parts.find((part) => part.name === "alarms");
  const calm = [
    found.judged_up_to ? ["Checked up to ", time(found.judged_up_to, "hours")] : "Nothing is checked yet",
    found.as_of ? ["rolled up as of ", time(found.as_of, "clock")] : "nothing is rolled up yet",
    alarms && `alarms: ${alarms.line}`,
    ["status of ", time(found.at, "clock")],
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
        make("strong", {}, isNew(found) ? "This stack is new" : (HEADS[String(found.well)] ?? HEADS.null)),
        isNew(found) ? " Nothing is checked yet: a new stack needs some minutes." : why,
      ),
    ),
    make(
      "p.quiet.calm",
      {},
      calm.filter(Boolean).flatMap((words, place) => [place ? " · " : "", words].flat()),
    ),
    make(
      "details",
      { "data-name": "parts" },
      make("summary", {}, `${count(found.parts.length, "check")}`),
      make("ul.parts", {}, found.parts.map(row)),
    ),
  ];
}

/** A part's name, as a link if a page of the console says more of it. */
const partLink = ({ name }) => (name === "drift" ? make("a", { href: "#/drift" }, name) : name);

/** The section of the docs that says what to do about a part: as a link, if the deployment says where people read it. */
function section({ config }, { see }) {
  const place = `${config.docs}/${see}`;
  return config.docs.startsWith("https://")
    ? make("a", { href: place, target: "_blank", rel: "noopener" }, "what to do")
    : make("code.id", {}, place);
}

/** A counter: what moved in the last day, hour by hour, and the tallies that moved most. It shows once it has moved. */
function card(context, counter, moves) {
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
    const empty = !total.series.some((point) => point.value);
    const moved = !empty || top.top.length > 0;
    made.classList.toggle("still", !moved);
    moves(counter.name, moved, total.as_of);
    const spark =
      total.series.length && !empty
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
  const made = panel(context, {
    title: make("a", { href: `#/top/${name}` }, counter.name),
    level: 3,
    kind: "counter still",
    everyS: COUNTERS_S,
    load,
    draw,
    tools: make("span.quiet.kind", {}, about),
  });
  return made;
}

/** The newest events: which numbers crossed a threshold, and whether the bus has each. It shows once there is one. */
function crossings(context) {
  const row = (one) =>
    make(
      "li",
      {},
      make("a", { href: tallyLink(one.counter, fullId(one)) }, `${one.counter} ${fullId(one)}`),
      ` ${one.direction === "up" ? "reached" : "fell below"} ${number(one.threshold)}`,
      one.percent === undefined ? "" : ` (${one.percent} % of ${number(one.limit)})`,
      make("span.quiet", {}, " ", time(one.at, "minute"), one.sent ? "" : ", not sent yet"),
    );
  const draw = ({ events }) => {
    made.hidden = !events.length;
    return make("ul", {}, events.map(row));
  };
  const load = () => context.api.get("events", { limit: EVENTS }, context.signal);
  const made = panel(context, { title: "Thresholds crossed", everyS: STATUS_S, load, draw });
  made.hidden = true;
  return made;
}

function leaders(name, top) {
  if (!top.top.length) return make("p.quiet", {}, `The list of this ${top.by} is empty.`);
  const most = top.top[0].value;
  const shared = beginning(top.top.map(fullId));
  const row = (one) =>
    make(
      "li",
      {},
      make(
        "a",
        { href: tallyLink(name, fullId(one)), title: fullId(one), "aria-label": fullId(one) },
        shared ? `…${fullId(one).slice(shared)}` : fullId(one),
      ),
      make("span.figure", {}, number(one.value)),
      share(one.value / most),
    );
  const list = make("ol.leaders", { "aria-label": `Top ${TOP} of ${name}, ${top.span}` }, top.top.slice(0, TOP).map(row));
  return top.by === "day" ? list : make("div", {}, make("p.quiet", {}, "In the newest hour:"), list);
}

/**
 * How much of these ids a narrow card leaves out: the parts that all begin with, if they are long.
 *
 * The sign between two parts stays: the page of a whole site is `…/`.
 */
function beginning(ids) {
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
    const [named, written] = [counter.value.trim(), id.value.trim()];
    location.hash = tallyLink(named, isOfPages(named) ? written : fullIdOf(written));
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
