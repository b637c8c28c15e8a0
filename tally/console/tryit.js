/** The page "Try it": three experiments with real requests on this machine. Only `make dev` serves it. */

import { count, number, signed, time } from "./format.js";
import { command, make, repairCommand, table, tallyLink } from "./parts.js";

const VIDEO = "try-it";
const PLAYS = `/videos/${VIDEO}/plays`;
const LOST = "/dev/lost"; // `make dev` runs the request for the path after this prefix, and hangs up without an answer
const IN_STOCK = 20;
const BUYERS = 50;
const TRIES_MAX = 5; // of a buyer, all with the same key; pauses: 0.1, 0.2, 0.4 and 0.8 s
const PAUSE_MS = 100;
const EDIT = "/dev/edit"; // `make dev` adds to a stored number without Tally
const EDIT_AMOUNT = 50;
const ACCEPTED = 5; // plays before the edit
const POLL_MS = 2000;
const OUTCOMES = { 200: "sold", 409: "refused: nothing is left" };

export async function show(root, { config, signal }) {
  root.append(
    make("h1", { tabindex: -1 }, "Try it"),
    make("p.lead", {}, "Each button changes numbers on this machine, with real requests. The other pages of the console only read."),
    experiment({
      title: "A play whose answer is lost",
      about: "A phone sends a play. The connection breaks after Tally has counted it, so the phone sends the play again.",
      button: "Play, and lose the answer",
      run: (say) => loseAnAnswer(say, signal),
      signal,
    }),
    experiment({
      title: `A stock of ${IN_STOCK}, bought by ${BUYERS} at once`,
      about: "The stock must never go below zero, and Tally must sell all of it.",
      button: `Let ${BUYERS} buy`,
      run: (say) => sellOut(say, signal),
      signal,
    }),
    experiment({
      title: "A number that is edited by hand",
      about: `A video is played ${ACCEPTED} times. Then a script adds ${EDIT_AMOUNT} in the database, without Tally. Tally finds the drift, and you repair it.`,
      button: `Edit a number by ${EDIT_AMOUNT}`,
      run: (say) => editByHand(say, config, signal),
      signal,
    }),
    make(
      "section.card",
      {},
      make("h2", {}, "Elements for your pages"),
      make("p", {}, "A like button, a player that counts its plays, and a number that follows. A reload or a lost answer loses no count."),
      make("p", {}, make("a", { href: "/dev/elements" }, "Open the page of elements")),
    ),
  );
}

/** A card with a button and the steps of its last run. `run(say)` calls `say(sentence, …elements)` for each step. */
function experiment({ title, about, button, run, signal }) {
  const steps = make("ol.steps", { "aria-live": "polite", "aria-label": `Steps: ${title}` });
  const say = (...children) => signal.aborted || steps.append(make("li", {}, children));
  const start = make("button", { type: "button", onclick: go }, button);
  async function go() {
    if (start.getAttribute("aria-disabled")) return;
    start.setAttribute("aria-disabled", "true"); // not `disabled`: that would take the focus away
    steps.replaceChildren();
    try {
      await run(say);
    } catch (error) {
      if (!error.words && !signal.aborted) console.error(error);
      say(make("span.error", { role: "alert" }, error.words ?? "This page failed."));
    }
    start.removeAttribute("aria-disabled");
  }
  return make("section.card", {}, make("h2", {}, title), make("p", {}, about), make("p", {}, start), steps);
}

async function loseAnAnswer(say, signal) {
  const plays = async () => (await bodyOf(await send("GET", PLAYS, { signal }))).value;
  const play = { key: crypto.randomUUID(), signal };
  const before = await plays();
  say("Before, the number of plays is ", strong(before), ".");

  const lost = await send("POST", LOST + PLAYS, play);
  if (lost) throw new Stopped("The answer arrived, although this step has to lose it.");
  say("The page sends a play with an idempotency key, and the connection breaks. The page cannot know whether Tally counted the play.", requestLine("POST", LOST + PLAYS, play.key, "no answer"));
  say("The number is now ", strong(await plays()), ": the play was counted, but the page got no answer.");

  const retry = await send("POST", PLAYS, play);
  await bodyOf(retry);
  const replayed = retry.headers.get("idempotency-replayed") === "true";
  say(
    replayed
      ? "The page sends the same play with the same key. Tally finds its receipt, and gives the stored answer without counting."
      : "The page sends the same play with the same key. Tally has no receipt of it, so it counts.",
    requestLine("POST", PLAYS, play.key, `${retry.status}, Idempotency-Replayed: ${replayed}`),
  );

  const after = await plays();
  say("After, the number is ", strong(after), `: ${conclusion(after - before)} `, linkToNumber("plays", VIDEO));
}

const conclusion = (counted) =>
  counted === 1 ? "sent twice, the play counted once." : `${number(counted)} plays were counted, so another page played the video, too.`;

async function sellOut(say, signal) {
  const token = await signIn(signal);
  const item = `try-it-${crypto.randomUUID().slice(0, 8)}`;
  const stock = `/counters/stock/${item}`;
  const request = { token, match: '"0"', body: { value: IN_STOCK }, signal }; // "0": the version before the first write
  await bodyOf(await send("PUT", stock, request));
  say(`A new item gets a stock of ${number(IN_STOCK)}.`, requestLine("PUT", stock, null, `value ${IN_STOCK}`));

  const results = make("div");
  say(`${BUYERS} buyers take one each, at the same moment. Each has a key of its own.`, requestLine("POST", `${stock}/increments`, "a different one for each", "amount −1"), results);
  const outcomes = {};
  const buy = async () => {
    const outcome = await buyOne(stock, token, signal);
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
    results.replaceChildren(outcomeTable(outcomes));
  };
  await Promise.all(Array.from({ length: BUYERS }, buy));

  const left = (await bodyOf(await send("GET", stock, { token, signal }))).value;
  const sold = outcomes[200] ?? 0;
  const isExact = sold === IN_STOCK && left === 0;
  say("The number ends at ", strong(left), isExact ? `: ${count(sold, "buyer")} got one, and no buyer got an item that was not there. ` : ". ", linkToNumber("stock", item));
}

/** Buys one. If the service is busy or the answer is lost, tries again with the same key. Returns the status; 0: no answer. */
async function buyOne(stock, token, signal) {
  const order = { token, key: crypto.randomUUID(), body: { amount: -1 }, signal };
  for (let tries = 1; ; tries++) {
    const answer = await send("POST", `${stock}/increments`, order);
    const mayRetry = !answer || answer.status === 429 || answer.status >= 500;
    if (!mayRetry || tries === TRIES_MAX) return answer ? answer.status : 0;
    await new Promise((done) => setTimeout(done, PAUSE_MS * 2 ** (tries - 1)));
  }
}

async function editByHand(say, config, signal) {
  const token = await signIn(signal);
  const video = `try-it-${crypto.randomUUID().slice(0, 8)}`;
  const plays = `/videos/${video}/plays`;
  for (let played = 0; played < ACCEPTED; played++)
    await bodyOf(await send("POST", plays, { key: crypto.randomUUID(), signal }));
  say(`A new video is played ${ACCEPTED} times.`, requestLine("POST", plays, "a different one for each", `value ${ACCEPTED}`));

  const item = { pk: `VID#${video}`, sk: "STATS#TOTAL", attribute: "play_count", by: EDIT_AMOUNT };
  await bodyOf(await send("PATCH", EDIT, { body: item, signal }));
  const editedAt = Date.now();
  const elapsed = () => count(Math.round((Date.now() - editedAt) / 1000), "second");
  say(`A script adds ${EDIT_AMOUNT} to the stored item, without Tally. `, linkToNumber("plays", video), requestLine("PATCH", EDIT, null, JSON.stringify(item)));

  // Asks for the number's details until `isAwaited` is true of them. After a 429, asks again, too.
  const pollDetails = async (isAwaited) => {
    for (;;) {
      const path = `/details?counter=plays&id=${video}`;
      const answer = await send("GET", path, { token, signal });
      if (!answer || answer.status !== 429) {
        const details = await bodyOf(answer);
        if (isAwaited(details)) return details;
      }
      await new Promise((done) => setTimeout(done, POLL_MS));
      signal.throwIfAborted();
    }
  };
  say("Tally compares stored and accepted numbers within seconds here, and within minutes on AWS. Wait about half a minute.");
  const { value, drift } = await pollDetails((details) => details.drift);
  say("The number drifts after ", elapsed(), ": ", make("strong", {}, `${number(value)} stored, ${number(value - drift.drift)} accepted, ${signed(drift.drift)}`), ".");
  await pollDetails((details) => details.drift?.confirmed);
  say(
    "The drift is confirmed after ", elapsed(), ": it has stood in five checks. To repair the number, run this command in the checkout. The program is in ",
    make("code", {}, ".venv/bin"), ". This page waits for the repair.",
    command(repairCommand(config, "plays", video), `the repair of ${video}`),
  );

  const repaired = await pollDetails((details) => !details.drift && details.repairs.length);
  say("The number is ", strong(repaired.value), " again. Its history keeps who repaired it and why:", history(repaired.repairs));
}

/** The table of a number's repairs. */
const history = (repairs) =>
  table(
    "History",
    ["When", ["Change", "figure"], "Who", "Why"],
    repairs.map((one) => [time(one.at, "minute"), signed(one.amount), one.who, one.why]),
  );

/** A table of the answers. `outcomes`: the number of buyers by status; 0: no answer. */
function outcomeTable(outcomes) {
  const rows = Object.entries(outcomes).map(([status, buyers]) => [
    [Number(status) || "no answer", OUTCOMES[status]].filter(Boolean).join(", "),
    number(buyers),
  ]);
  return table("Answers", ["Answer", ["Buyers", "figure"]], rows);
}

/** Returns a token that may change counters. Only `make dev` gives such a token to anyone. */
async function signIn(signal) {
  const body = { sub: "try-it", scope: "tally/read tally/write" };
  return (await bodyOf(await send("POST", "/dev/token", { body, signal }))).access_token;
}

/** Ends an experiment. `words`: what its card tells the reader. */
class Stopped extends Error {
  constructor(words) {
    super(words);
    this.words = words;
  }
}

/** Sends a request. Returns the answer, or null if no answer came. */
async function send(method, path, { token, key, match, body, signal }) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (key) headers["Idempotency-Key"] = key;
  if (match) headers["If-Match"] = match;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", signal });
  } catch (error) {
    if (signal.aborted) throw error;
    return null;
  }
}

/** Returns the body of an answer. Throws Stopped if no answer came, or if the answer is not a success. */
async function bodyOf(answer) {
  if (!answer) throw new Stopped("No answer. Check that `make dev` runs.");
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Stopped(`Tally answered ${answer.status}: ${body.detail ?? body.message ?? "no reason given"}`);
  return body;
}

const strong = (value) => make("strong", {}, number(value));
const linkToNumber = (counter, id) => make("a", { href: tallyLink(counter, id) }, "Look at the number");
const requestLine = (method, path, key, answer) =>
  make("code.sent", {}, `${method} ${path}${key ? ` · Idempotency-Key: ${key}` : ""} → ${answer}`);
