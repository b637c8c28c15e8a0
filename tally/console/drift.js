/** The page of numbers that drift: by how much, since when, and the command that repairs each number. */

import { count, signed, time } from "./format.js";
import { command, empty, fullId, make, panel, repairCommand, state, tallyLink } from "./parts.js";

const DRIFT_S = 30;
const PAGE_SIZE = 50;

export async function show(root, context) {
  root.append(
    make("h1", { tabindex: -1 }, "Drift"),
    make(
      "p.lead",
      {},
      "A number drifts if the stored value differs from the accepted changes. Either the item was edited by hand, or there is a bug.",
    ),
    checkedPanel(context),
    list(context),
  );
}

/** Shows up to when everything was judged. Without this time an empty list proves nothing. */
function checkedPanel(context) {
  const draw = (status) => {
    const part = status.parts.find(({ name }) => name === "judged");
    const until = status.judged_up_to
      ? ["Up to ", time(status.judged_up_to, "minute"), ". Drift of later changes does not show yet."]
      : "Nothing is checked yet: a new stack needs some minutes. Until then an empty list proves nothing.";
    return make("p", {}, state(part?.state), until);
  };
  return panel(context, {
    title: "Checked",
    everyS: DRIFT_S,
    load: () => context.api.get("status", {}, context.signal),
    draw,
  });
}

function list(context) {
  const { api, signal } = context;
  let pages = 1; // how many pages of the API's list are shown
  const load = async () => {
    const rows = [];
    let cursor = null;
    for (let page = 0; page < pages; page++) {
      const body = await api.get("drift", { limit: PAGE_SIZE, cursor }, signal);
      rows.push(...body.drift);
      cursor = body.cursor;
      if (!cursor) break;
    }
    return { rows, hasMore: cursor !== null };
  };
  const showMore = () => {
    pages += 1;
    card.run();
  };
  const draw = ({ rows, hasMore }) => {
    if (!rows.length)
      return empty("No drift.", "Every checked number is the sum of its accepted changes.");
    const confirmed = rows.filter((row) => row.confirmed).length;
    return [
      make(
        "p",
        {},
        `${count(rows.length, "number")}${hasMore ? " so far" : ""}, ${confirmed} confirmed. Find the cause before you repair: if all drift has one direction, suspect a bug.`,
      ),
      make(
        "ul.drifts",
        {},
        rows.map((row) => item(context, row)),
      ),
      hasMore && make("p", {}, make("button", { type: "button", onclick: showMore }, "Show more")),
    ];
  };
  const card = panel(context, { title: "Numbers that drift", everyS: DRIFT_S, load, draw });
  return card;
}

function item(context, row) {
  const id = fullId(row);
  const watched = context.counter(row.counter)?.watched; // the attribute of the team number that the counter checks
  return make(
    "li",
    {},
    make(
      "div.head",
      {},
      make(
        "h3",
        {},
        make("span.eyebrow", {}, row.counter),
        " ",
        make("a.id", { href: tallyLink(row.counter, id) }, id),
      ),
      make("strong.amount", {}, signed(row.drift)),
    ),
    make(
      "p.quiet",
      {},
      watched ? `${watched} differs from its items. ` : "",
      row.since ? ["Since ", time(row.since, "minute"), ". "] : "",
      row.confirmed ? "Confirmed." : "Not confirmed yet: it may return to 0 without a repair.",
    ),
    command(repairCommand(context.config, row.counter, id, watched), `the repair of ${row.counter} ${id}`),
  );
}
