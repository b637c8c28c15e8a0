// Tests what TallyFunctions sends to Tally's Lambda functions, how it reads answers, and when it retries.

import assert from "node:assert/strict";
import { test } from "node:test";
import { TallyFunctions } from "../../tally/javascript/lambda.js";

/** Returns a client whose invocations get this answer, and the list of the events that the client sends. */
const clientWith = (answer) => {
  const sent = [];
  const send = async ({ input }) => {
    sent.push(JSON.parse(input.Payload));
    return answer();
  };
  return { sent, tally: new TallyFunctions({ prefix: "tally-", lambda: { send } }) };
};
const countedAnswer = () => ({ Payload: Buffer.from(JSON.stringify({ status: 200, replayed: false, body: { counted: true } })) });

test("a BigInt is sent as a JSON number, also inside a list", async () => {
  const { sent, tally } = clientWith(countedAnswer);
  await tally.increment({ counter: "usage", id: "7c20", amount: 5n });
  await tally.change({ changes: [{ counter: "usage", id: "7c20", amount: -3n }] });
  assert.deepEqual([sent[0].amount, sent[1].changes[0].amount], [5, -3]);
  await tally.put_limit({ counter: "calls", id: "7c20", limit: 10n ** 15n });
  assert.equal(sent[2].limit, 1e15);
  await assert.rejects(tally.put_limit({ counter: "calls", id: "7c20", limit: 2n ** 53n }), /too large/);
});

test("an answer's number above 2 ** 53 is an exact BigInt", async () => {
  const { tally } = clientWith(() => ({ Payload: Buffer.from('{"status":200,"body":{"value":9007199254740993}}') }));
  assert.equal((await tally.get_counter({ counter: "usage", id: "7c20" })).value, 2n ** 53n + 1n);
});

test("the ids of counters are encoded, and the addresses of pages are sent unchanged", async () => {
  const { sent, tally } = clientWith(countedAnswer);
  await tally.get_tallies({ of: ["plays:/a/", "visits:https://example.com/a b"] });
  // A change that is null is sent unchanged, so that Tally refuses it.
  await tally.change({ changes: [{ counter: "usage", id: "/a/", amount: 1 }, null] });
  // A target without a slash, such as the target of a batch, has no id to encode.
  await tally.get_receipts({ of: "increment", target: ["plays//a/", "changes"], key: ["1", "2"] });
  await tally.get_receipts({ of: "visit", target: "https://example.com/a b", key: "1" });
  await tally.increment({ counter: "usage", id: 7 });
  assert.deepEqual(sent[0].of, ["plays:~2Fa~2F", "visits:https://example.com/a b"]);
  assert.deepEqual([sent[1].changes[0].id, sent[1].changes[1]], ["~2Fa~2F", null]);
  assert.deepEqual([sent[2].target, sent[3].target], [["plays/~2Fa~2F", "changes"], "https://example.com/a b"]);
  assert.equal(sent[4].id, "7");
});

test("a BigInt that is too large, or a cyclic object, raises a TypeError, and nothing is sent", async () => {
  const { sent, tally } = clientWith(countedAnswer);
  const cyclic = {};
  cyclic.again = cyclic;
  for (const amount of [2n ** 64n, cyclic]) await assert.rejects(tally.increment({ counter: "usage", id: "7c20", amount }), TypeError);
  assert.deepEqual(sent, []);
});

test("a request without credentials is not retried, and the caller gets the SDK's error", async () => {
  const credentialsError = Object.assign(new Error("Could not load credentials"), { name: "CredentialsProviderError" });
  const { sent, tally } = clientWith(() => Promise.reject(credentialsError));
  await assert.rejects(tally.increment({ counter: "usage", id: "7c20", amount: 5 }), credentialsError);
  assert.equal(sent.length, 1);
});
