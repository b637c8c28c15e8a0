/** A form that looks up whether a change counted, by its idempotency key. */

import { number } from "./format.js";
import { isPage, make } from "./parts.js";

const OF_CHILDREN = ["put_mine", "delete_mine", "put_anonymous", "delete_anonymous", "put_child", "delete_child"];
const MANY = "change"; // a batch of changes under one key: the target of its receipt is "changes", not a number
const OF_NUMBERS = ["increment", MANY, "set_counter", "hold", "change_hold"];

/** Returns the operations that change a counter under a key. `declared`: the counter in `GET /status`. */
function operationsOf(declared, id) {
  if (isPage(declared, id)) return ["visit"];
  return declared?.counts === "children" ? OF_CHILDREN : OF_NUMBERS;
}

/** Returns why the changes of a counter have no key; "" if they have keys. */
function reasonForNoKey(declared) {
  if (declared?.counts === "items") return "This counter counts items of your own table: its changes have no key.";
  return declared?.counts === "visitors" ? "This counter counts visitors, not keys. Send the visit again: the answer says whether the visitor is new." : "";
}

/** The form, and below it the receipt or the note that there is no receipt. */
export function receipts(context, counter, id) {
  const { api, signal } = context;
  const key = make("input", { id: "key", name: "key", required: true, autocomplete: "off", spellcheck: "false" });
  const caller = make("input", { id: "caller", name: "caller", autocomplete: "off", spellcheck: "false" });
  const operation = make("select", { id: "operation" });
  const callers = make("p", {}, make("label", { for: "caller" }, "Caller"), caller);
  const choice = make("p", {}, make("label", { for: "operation" }, "Sent with"), operation);
  const whose = make("span", {}, "Each caller has keys of their own. Name the caller (the sub of the token), or leave the field empty for your own keys.");
  const prompt = make("span", {}, "Paste the idempotency key of a change. ", whose);
  const noKey = make("span");
  const answer = make("div.answer", { role: "status" });
  let hasCallers; // false: the counter takes no token, so anyone may ask for its receipts
  // Shows the fields for the counter's declaration, which the console has after a sign-in.
  const adapt = () => {
    const declared = context.counter(counter);
    const operations = operationsOf(declared, id);
    hasCallers = declared ? declared.changes !== "anyone" : Boolean(api.token());
    operation.replaceChildren(...operations.map((name) => make("option", { value: name }, name)));
    [callers.hidden, whose.hidden, choice.hidden] = [!hasCallers, !hasCallers, operations.length === 1];
    noKey.textContent = reasonForNoKey(declared);
    prompt.hidden = form.hidden = Boolean(noKey.textContent);
  };
  const load = async () => (await context.loadCounters()) && adapt();
  const ask = async (event) => {
    event.preventDefault();
    answer.replaceChildren(make("p.quiet", {}, "Loading…"));
    try {
      await load();
      // The target of a receipt has no period, which follows the id's `#`.
      const pages = isPage(context.counter(counter), id);
      const target = operation.value === MANY ? "changes" : pages ? id : `${counter}/${id.split("#")[0]}`;
      const name = (hasCallers && caller.value.trim()) || null;
      const path = name ? "receipts/any" : hasCallers ? "receipts/own" : "receipts";
      const query = { of: operation.value, target, key: key.value.trim(), caller: name };
      answer.replaceChildren(...receiptWords((await api.get(path, query, signal)).receipts[0], name));
    } catch (error) {
      if (!signal.aborted) answer.replaceChildren(make("p.error", {}, error.words ?? "The page failed."));
    }
  };
  const form = make(
    "form.row",
    { onsubmit: ask },
    make("p.wide", {}, make("label", { for: "key" }, "Key"), key),
    callers,
    choice,
    make("p", {}, make("button", {}, "Look up")),
  );
  const tryLoad = () => load().catch(() => {}); // api.js asks a user who may not read the status to sign in
  api.addEventListener("reload", tryLoad, { signal });
  adapt();
  tryLoad();
  return make(
    "section.card",
    { "aria-labelledby": "receipts" },
    make("div.head", {}, make("h2", { id: "receipts" }, "Look up a change")),
    make("p.quiet", {}, prompt, noKey),
    form,
    answer,
  );
}

/** Shows a receipt, or that there is no receipt. `caller`: the caller that the form names, or null. */
function receiptWords(receipt, caller) {
  if (receipt.state !== "counted")
    return [
      make("p", {}, make("strong", {}, "Not found. ")),
      make(
        "p.quiet",
        {},
        `The change was never sent${caller ? ` by ${caller}` : ""}, or Tally rejected it, `,
        caller ? "" : "or another caller sent it, ",
        "or its receipt has expired.",
      ),
    ];
  const facts = Object.entries(receipt.answer ?? {}).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, typeof value === "number" ? number(value) : String(value))),
  );
  const counted = receipt.voided ? "Counted once, and voided later. " : "Counted once. ";
  return [make("p", {}, make("strong", {}, counted), "The answer was:"), make("dl.facts", {}, facts)];
}
