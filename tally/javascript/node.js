// A folder as the storage of a client in Node, with a file for each change. A file is written whole or not at all, and
// is on the disk before the call returns. So nothing is lost if the process is killed, or if the power fails.

import { createHash } from "node:crypto";
import { closeSync, fsyncSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const UNFINISHED = ".part";
const FILE_NAME = /^[0-9a-f]{64}$/;

const openAndSync = (path, flags, text) => {
  const file = openSync(path, flags);
  try {
    // Unlike `writeSync`, `writeFileSync` continues after a partial write, and throws if the disk is full.
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

export const folder = (givenPath) => {
  // A service may change its working directory later, so the path is made absolute. Throws if `givenPath` is not text.
  const path = resolve(givenPath);
  mkdirSync(path, { recursive: true });
  // A file is named by a hash, because names may be too long. Its first line is the item's name, the rest is the text.
  const fileOf = (name) => join(path, createHash("sha256").update(name).digest("hex"));
  let files = [];
  // The first line of a file never changes, so it is read once.
  let names = new Map();
  return {
    get length() {
      files = readdirSync(path).filter((file) => FILE_NAME.test(file));
      names = new Map(files.map((file) => [file, names.get(file)]));
      return files.length;
    },
    key: (index) => {
      const file = files[index];
      names.get(file) ?? names.set(file, read(join(path, file))?.split("\n", 1)[0]);
      return names.get(file) ?? null;
    },
    getItem: (name) => read(fileOf(name))?.slice(name.length + 1) ?? null,
    setItem: (name, text) => {
      const unfinished = `${fileOf(name)}.${process.pid}${UNFINISHED}`;
      openAndSync(unfinished, "w", `${name}\n${text}`);
      renameSync(unfinished, fileOf(name));
      openAndSync(path, "r"); // the new name of the file is on the disk, too
    },
    removeItem: (name) => rmSync(fileOf(name), { force: true }),
  };
};
