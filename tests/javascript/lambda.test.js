// What goes to Tally's functions, and what is sent again.

import assert from "node:assert/strict";
import { test } from "node:test";
import { TallyFunctions } from "../../tally/javascript/lambda.js";

const made = (answer) => {
  const sent = [];
  const send = async ({ input }) => {
    sent.push(JSON.parse(input.Payload));
    return answer();
  };
  return { sent, tally: new TallyFunctions({ prefix: "tally-", lambda: { send } }) };
};
const counted = () => ({ Payload: Buffer.from(JSON.stringify({ status: 200, replayed: false, body: { counted: true } })) });

test("a BigInt is a number, also within a list", async () => {
  const { sent, tally } = made(counted);
  await tally.increment({ counter: "usage", id: "7c20", amount: 5n });
  await tally.change({ changes: [{ counter: "usage", id: "7c20", amount: -3n }] });
  assert.deepEqual([sent[0].amount, sent[1].changes[0].amount], [5, -3]);
});

test("what JSON cannot hold is a TypeError at once", async () => {
  const { sent, tally } = made(counted);
  const round = {};
  round.again = round;
  for (const amount of [2n ** 64n, round]) await assert.rejects(tally.increment({ counter: "usage", id: "7c20", amount }), TypeError);
  assert.deepEqual(sent, []);
});

test("without credentials nothing is sent again", async () => {
  const failed = Object.assign(new Error("Could not load credentials"), { name: "CredentialsProviderError" });
  const { sent, tally } = made(() => Promise.reject(failed));
  await assert.rejects(tally.increment({ counter: "usage", id: "7c20", amount: 5 }), failed);
  assert.equal(sent.length, 1);
});
