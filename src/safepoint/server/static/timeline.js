// Owns the picture of a receipt: a bar per operation, from the stop to its end; what still runs is marked.

const NS = "http://www.w3.org/2000/svg";
const LEFT = 210, WIDTH = 640, ROW = 22;

// null: there is nothing to draw.
export function timeline(receipt) {
  const rows = receipt.entries.filter((entry) => entry.seconds !== null || entry.fate !== "finished");
  if (!rows.length) return null;
  const longest = Math.max(0.001, ...rows.map((entry) => entry.seconds ?? 0));
  const svg = make("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${rows.length * ROW + 8}`, role: "img" });
  svg.append(make("title", {}, summary(receipt)));
  rows.forEach((entry, index) => svg.append(row(entry, index, longest)));
  return svg;
}

function row(entry, index, longest) {
  const y = index * ROW + 4;
  const group = make("g", { "data-fate": entry.fate });
  const running = entry.fate === "still_running" || entry.fate === "unknown";
  const told = [entry.name, entry.fate.replace("_", " "), entry.seconds === null ? "" : `after ${duration(entry.seconds)}`, entry.where ? `at ${entry.where}` : "", entry.note].filter(Boolean).join(" · ");
  group.append(make("title", {}, told));
  group.append(make("text", { x: 0, y: y + 13 }, shorten(entry.name, 30)));
  group.append(make("line", { class: "track", x1: LEFT, x2: WIDTH - 110, y1: y + 9, y2: y + 9 }));
  const room = WIDTH - 110 - LEFT;
  if (running) group.append(make("rect", { class: "runs", x: LEFT, y: y + 3, width: room, height: 12, rx: 3 }));
  else if (entry.fate === "not_started") group.append(make("circle", { class: "dot", cx: LEFT + 5, cy: y + 9, r: 4 }));
  else group.append(make("rect", { class: "took", x: LEFT, y: y + 3, width: Math.max(3, (entry.seconds ?? 0) / longest * room), height: 12, rx: 3 }));
  const word = running ? "still running" : entry.fate === "not_started" ? "not started" : duration(entry.seconds ?? 0);
  group.append(make("text", { x: WIDTH - 104, y: y + 13 }, word));
  return group;
}

export function summary(receipt) {
  const took = receipt.requested_at === null ? null : receipt.settled_at - receipt.requested_at;
  const running = receipt.entries.filter((entry) => entry.fate === "still_running" || entry.fate === "unknown").length;
  const parts = [took === null ? "" : `Everything had ended after ${duration(took)}.`, running ? `${running} still running or not known.` : "", receipt.escalated ? "The safe point was not reached in time." : ""];
  return parts.filter(Boolean).join(" ");
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
