// Sends a backlog: `node backlog.mjs CHANGES`. An earlier page stored so many changes while the API did not answer.
// Prints as JSON how often the storage was read, how many requests were sent, and how many changes were counted.

import { Tally } from "../tally/javascript/tally.js";

const changes = Number(process.argv[2]);
const api = "https://api.example.com";
const items = new Map();
let reads = 0;
let requests = 0;
const counted = new Set();
const storage = {
  get length() {
    return items.size;
  },
  key: (index) => names[index] ?? null,
  getItem: (name) => (reads++, items.get(name) ?? null),
  setItem: (name, value) => items.set(name, value),
  removeItem: (name) => items.delete(name),
};

for (let at = 0; at < changes; at++) {
  // An anonymous key has at least 22 characters.
  const key = `job-${String(at).padStart(24, "0")}`;
  items.set(`tally1 ${api}  plays 9f3a ${key}`, JSON.stringify({ counter: "plays", id: "9f3a", key, at, sent: 0, tries: 0 }));
}
const names = [...items.keys()];
globalThis.fetch = async (_, { body }) => {
  requests++;
  counted.add(JSON.parse(body).key);
  return new Response(JSON.stringify({ counter: "plays", id: "9f3a", counted: true }));
};
let left = changes;
new Tally({ api, storage }).addEventListener("change", ({ detail: { outcome } }) => {
  if (outcome && !--left) console.log(JSON.stringify({ reads, requests, counted: counted.size }));
});
