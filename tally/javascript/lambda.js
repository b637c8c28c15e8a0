// Invokes Tally's functions from another function, as tally.client does in Python. requests.d.ts has a method for each
// operation; `make generate` writes it from the operations.

import { randomUUID } from "node:crypto";
import { InvokeCommand, LambdaClient } from "@aws-sdk/client-lambda";
import { KEYED, SERVED_BY } from "./requests.js";
import { fromJson, idOf, isOfPages, tallyOf } from "./tally.js";

const ATTEMPTS_MAX = 6;
// The longest first pause. For each later attempt the longest pause doubles, up to PAUSE_MS_MAX.
const PAUSE_FIRST_MS = 200;
const PAUSE_MS_MAX = 2000;

export class TallyError extends Error {
  constructor(problem) {
    super(problem.detail);
    this.name = "TallyError";
    this.problem = problem;
  }

  get retryable() {
    return this.problem.status >= 500;
  }
}

// A database may return an amount as a BigInt, which JSON cannot write. So the client sends the amount as a Number.
const asNumber = (_, value) => {
  if (typeof value !== "bigint") return value;
  if (Number.isSafeInteger(Number(value))) return Number(value);
  throw new TypeError(`tally: ${value} is too large for an amount`);
};

const mapEach = (value, encode) => (Array.isArray(value) ? value.map(encode) : value && encode(value));
// `target` is COUNTER/ID, or the name of an operation on many counters.
const encodedTarget = (target) => String(target).replace(/(?<=^[^/]*\/).*/s, idOf);
// Returns the fields with their ids encoded, as the Python client does. An id becomes text: functions refuse numbers.
const withEncodedIds = ({ id, of, target, changes, ...rest }) => ({
  ...rest,
  id: isOfPages(rest.counter) ? id : idOf(id),
  of: mapEach(of, tallyOf),
  target: of === "visit" ? target : mapEach(target, encodedTarget),
  changes: Array.isArray(changes) ? changes.map((change) => change?.id === undefined ? change : { ...change, id: idOf(change.id) }) : changes,
});

const unreachable = (detail) => new TallyError({ type: "urn:problem-type:tally:unreachable", title: "Try again", status: 503, detail });

export class TallyFunctions {
  constructor({ functions = {}, prefix, qualifier, caller, lambda = new LambdaClient() } = {}) {
    Object.assign(this, { functions, prefix, qualifier, caller, lambda });
  }

  async send(operation, fields) {
    const event = { operation, caller: this.caller, ...withEncodedIds(fields) };
    // All attempts have the same key, so the change counts once.
    if (KEYED.has(operation)) event.idempotency_key ??= randomUUID();
    const payload = JSON.stringify(event, asNumber);
    for (let attempt = 1; ; attempt++)
      try {
        const { body, replayed } = await this.#invoke(SERVED_BY[operation], payload);
        return KEYED.has(operation) ? { ...body, replayed } : body;
      } catch (error) {
        if (!error.retryable || attempt === ATTEMPTS_MAX) throw error;
        const longestMs = Math.min(PAUSE_MS_MAX, PAUSE_FIRST_MS * 2 ** (attempt - 1));
        await new Promise((done) => setTimeout(done, Math.random() * longestMs));
      }
  }

  async #invoke(name, payload) {
    const FunctionName =
      this.functions[name] ?? (this.prefix == null ? null : `${this.prefix}${name}${this.qualifier ? `:${this.qualifier}` : ""}`);
    if (!FunctionName) throw new TypeError(`tally: give \`functions\` the name or ARN of ${name}, or give \`prefix\``);
    let answer;
    try {
      const response = await this.lambda.send(new InvokeCommand({ FunctionName, Payload: payload }));
      if (response.FunctionError) throw unreachable("The function failed. Send the request again.");
      answer = fromJson(new TextDecoder().decode(response.Payload));
    } catch (error) {
      // If Lambda refuses the call, or there are no credentials, no retry helps, so the caller gets the SDK's error.
      const status = error.$metadata?.httpStatusCode;
      const refused = (status >= 400 && status < 500 && status !== 429) || error.name === "CredentialsProviderError";
      if (refused || error instanceof TallyError) throw error;
      throw unreachable(`No answer came: ${error.message}`);
    }
    if (!answer?.body) throw new TypeError("tally: the answer does not come from one of Tally's functions");
    if (answer.status >= 400) throw new TallyError(answer.body);
    return answer;
  }
}

for (const operation of Object.keys(SERVED_BY))
  TallyFunctions.prototype[operation] = function (fields) {
    return this.send(operation, fields);
  };
