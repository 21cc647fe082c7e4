// Owns what Node is asked to do: one line on stdin names a task and a count, one line on stdout answers with a number.
// Times are in seconds for one operation. The first line says the version, or nothing where AbortSignal.any is missing.

import { createInterface } from "node:readline";

const seconds = (work) => {
  const start = performance.now();
  work();
  return (performance.now() - start) / 1000;
};

// Garbage goes in several turns: a WeakRef is kept alive until the turn that looked at it has ended.
const settle = async () => {
  for (let turn = 0; turn < 5; turn++) {
    gc();
    await new Promise(setImmediate);
  }
};

const makeAndDrop = (count, signals) => {
  let aborted = false;
  for (let i = 0; i < count; i++) aborted = AbortSignal.any(signals).aborted || aborted;
  return aborted;
};

const twoParents = () => [new AbortController().signal, new AbortController().signal];

// As many controllers as it takes for 10,000 listeners; `timed` is told which and how to add and to abort.
const perListener = (count, timed) => {
  let spent = 0;
  for (let told = 0; told < 10_000; told += count) {
    const controller = new AbortController();
    // Different functions: the same one would be registered only once.
    const listeners = Array.from({ length: count }, () => () => {});
    const add = () => listeners.forEach((listener) => controller.signal.addEventListener("abort", listener));
    spent += timed(add, () => controller.abort()) / count;
  }
  return spent / Math.ceil(10_000 / count);
};

const longLived = twoParents();

const tasks = {
  any: (count) => seconds(() => makeAndDrop(count, longLived)) / count,

  anyBytes: async (count) => {
    const signals = twoParents();
    makeAndDrop(count, twoParents());
    await settle();
    const before = process.memoryUsage().heapUsed;
    makeAndDrop(count, signals);
    await settle();
    const kept = (process.memoryUsage().heapUsed - before) / count;
    return signals.length ? kept : NaN; // they live until here
  },

  anyObservers: async (count) => {
    const signals = twoParents();
    makeAndDrop(count, signals);
    await settle();
    const symbol = Object.getOwnPropertySymbols(signals[0]).find((s) => s.description === "kDependantSignals");
    return symbol ? (signals[0][symbol]?.size ?? 0) : NaN;
  },

  addListeners: (count) => perListener(count, (add) => seconds(add)),

  tellListeners: (count) => perListener(count, (add, abort) => (add(), seconds(abort))),
};

process.on("warning", () => {}); // the number of listeners is meant
console.log(AbortSignal.any ? process.version : "");
for await (const line of createInterface({ input: process.stdin })) {
  const [task, count] = line.split(" ");
  gc();
  console.log(await tasks[task](Number(count)));
}
