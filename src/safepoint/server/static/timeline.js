// The timeline of a receipt: a bar for each operation, from the stop to its end. Operations that still run are marked.

const NS = "http://www.w3.org/2000/svg";
const ROW = 22, LABEL = 110; // the height of a row, and the width of the text at its end
const WIDE = { left: 210, width: 640, letters: 30 }, NARROW = { left: 112, width: 330, letters: 15 };

// Returns null if there is nothing to draw.
export function timeline(receipt) {
  const rows = receipt.entries.filter((entry) => entry.seconds !== null || entry.fate !== "finished");
  if (!rows.length) return null;
  const longest = Math.max(0.001, took(receipt) ?? 0, ...rows.map((entry) => entry.seconds ?? 0));
  const size = matchMedia("(max-width: 42rem)").matches ? NARROW : WIDE;
  const svg = make("svg", { class: "timeline", viewBox: `0 0 ${size.width} ${rows.length * ROW + 8}`, role: "img" });
  svg.append(make("title", {}, summary(receipt)));
  rows.forEach((entry, index) => svg.append(row(entry, index, longest, size)));
  return svg;
}

function row(entry, index, longest, { left, width, letters }) {
  const y = index * ROW + 4;
  const group = make("g", { "data-fate": entry.fate });
  const running = entry.fate === "still_running" || entry.fate === "unknown";
  const title = [entry.name, entry.fate.replace("_", " "), entry.seconds === null ? "" : `after ${duration(entry.seconds)}`, entry.where ? `at ${entry.where}` : "", entry.note].filter(Boolean).join(" · ");
  const longestBar = width - LABEL - left;
  group.append(make("title", {}, title));
  group.append(make("text", { x: 0, y: y + 13 }, shorten(entry.name, letters)));
  group.append(make("line", { class: "track", x1: left, x2: left + longestBar, y1: y + 9, y2: y + 9 }));
  if (running) group.append(make("rect", { class: "runs", x: left, y: y + 3, width: longestBar, height: 12, rx: 3 }));
  else if (entry.fate === "not_started") group.append(make("circle", { class: "dot", cx: left + 5, cy: y + 9, r: 4 }));
  else group.append(make("rect", { class: "took", x: left, y: y + 3, width: Math.max(3, (entry.seconds ?? 0) / longest * longestBar), height: 12, rx: 3 }));
  const label = { still_running: "still running", unknown: "not known", not_started: "not started" }[entry.fate] ?? duration(entry.seconds ?? 0);
  group.append(make("text", { x: width - LABEL + 6, y: y + 13 }, label));
  return group;
}

function took(receipt) { return receipt.requested_at === null ? null : receipt.settled_at - receipt.requested_at; }

export function summary(receipt) {
  const seconds = took(receipt);
  const running = receipt.entries.filter((entry) => entry.fate === "still_running" || entry.fate === "unknown").length;
  const after = seconds === null ? "" : ` after ${duration(seconds)}`;
  const text = running ? `The turn ended${after}; ${running} still running or not known.` : after && `Everything ended${after}.`;
  return [text, receipt.escalated ? "The safe point was not reached in time." : ""].filter(Boolean).join(" ");
}

export function duration(seconds) {
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function shorten(text, most) { return text.length <= most ? text : `…${text.slice(1 - most)}`; }

function make(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
