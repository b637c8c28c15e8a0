// A folder as the storage of a client in Node, with a file for each change. A file is written whole or not at all, and
// is on the disk before the call returns. So a killed process loses nothing, nor does a machine without power.

import { createHash } from "node:crypto";
import { closeSync, fsyncSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const UNFINISHED = ".part";
const OWN = /^[0-9a-f]{64}$/;

const synced = (path, flags, text) => {
  const file = openSync(path, flags);
  try {
    // Unlike `writeSync`, it continues after a partial write, and throws if the disk is full.
    if (text !== undefined) writeFileSync(file, text);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
};

/** Returns the text of a file; null if another process has removed it, or if it is not a file. */
const read = (path) => {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "EISDIR") return null;
    throw error;
  }
};

export const folder = (given) => {
  // A service may change its working directory later. Throws at once if `given` is not text.
  const path = resolve(given);
  mkdirSync(path, { recursive: true });
  // A name may be longer than a file's. The first line of a file is its name, the rest the text.
  const at = (name) => join(path, createHash("sha256").update(name).digest("hex"));
  let files = [];
  // A file keeps its name, so the name is read once.
  let names = new Map();
  return {
    get length() {
      files = readdirSync(path).filter((file) => OWN.test(file));
      names = new Map(files.map((file) => [file, names.get(file)]));
      return files.length;
    },
    key: (place) => {
      const file = files[place];
      names.get(file) ?? names.set(file, read(join(path, file))?.split("\n", 1)[0]);
      return names.get(file) ?? null;
    },
    getItem: (name) => read(at(name))?.slice(name.length + 1) ?? null,
    setItem: (name, text) => {
      const unfinished = `${at(name)}.${process.pid}${UNFINISHED}`;
      synced(unfinished, "w", `${name}\n${text}`);
      renameSync(unfinished, at(name));
      synced(path, "r");
    },
    removeItem: (name) => rmSync(at(name), { force: true }),
  };
};
