// Draws turns and the queue from the state of the page. The action of a button is in its data-do attribute.

import { render } from "/static/markdown.js";
import { isOver } from "/static/state.js";
import { summary, timeline } from "/static/timeline.js";

const STATES = { running: "running", completed: "done", failed: "failed", interrupted: "interrupted", not_started: "not started", unknown: "outcome unknown" };
const STOPPING = { AFTER_TOOLS: "Stopping after this tool…", AFTER_MODEL: "Stopping after this answer…", SAFE_POINT: "Stopping at the next safe point…" };
const MAX_SHOWN = 4000;

export function drawTurn(turn) {
  const article = element("article", { class: "turn", "data-key": turn.id, "data-status": turn.status, "aria-busy": String(!isOver(turn)) });
  for (const text of turn.texts) article.append(element("div", { class: "message" }, text));
  const items = element("div", { class: "items" });
  const before = (turn.before?.items ?? []).filter((item) => item.type === "tool" && item.status === "completed");
  items.append(...[...before, ...turn.items].map(drawItem).filter(Boolean));
  article.append(items);
  article.append(isOver(turn) ? drawEnd(turn) : element("p", { class: "state-line" }, stateLine(turn)));
  return article;
}

function stateLine(turn) {
  if (turn.status !== "stopping") return turn.items.some((item) => item.open && item.text) ? "" : "Working…";
  if (turn.abandon === 0) return "Stopping… without waiting any longer";
  return turn.ignored ? `Stopping… waiting for ${turn.ignored}` : STOPPING[turn.stopAt] ?? "Stopping…";
}

function drawItem(item) {
  if (item.type === "tool") return drawTool(item);
  if (item.type === "question") return drawQuestion(item);
  if (!item.text && !item.open) return null;
  const box = element("div", { class: "answer" });
  if (item.from) box.dataset.from = item.from; // drawn before the text, by the style sheet
  if (item.drawn?.text !== item.text) item.drawn = { text: item.text, html: render(item.text) };
  box.innerHTML = item.drawn.html;
  return box;
}

function drawTool(item) {
  const box = element("details", { class: "tool", "data-status": item.status, "data-key": item.key });
  if (item.inside.length || item.status === "running") box.open = true;
  const head = element("summary", {});
  head.append(element("strong", {}, item.name), element("span", { class: "state" }, STATES[item.status] ?? item.status));
  const inside = element("div", { class: "inside" });
  inside.append(element("pre", {}, shortened(item.arguments)));
  if (item.progress) {
    inside.append(element("span", {}, item.progress.message));
    if (item.progress.fraction !== null) inside.append(element("progress", { max: 1, value: item.progress.fraction, "aria-label": `${item.name}: ${item.progress.message}` }));
  }
  if (item.ignored && item.status === "running") inside.append(element("p", { class: "state-line" }, `Still runs at ${item.ignored}`));
  inside.append(...item.inside.map(drawItem).filter(Boolean));
  if (item.content) inside.append(element("pre", {}, shortened(item.content)));
  box.append(head, inside);
  return box;
}

function shortened(text) { return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text; }

function drawQuestion(item) {
  const card = element("section", { class: item.state === "open" ? "card" : "card over", "aria-label": "Question", "data-key": item.id });
  card.append(element("p", {}, item.text));
  if (item.state !== "open") {
    card.append(element("p", {}, item.state === "answered" ? `Answered: ${item.answer}` : "Withdrawn."));
    return card;
  }
  const form = element("form", { "data-do": "answer", "data-question": item.id });
  if (item.options?.length) {
    for (const option of item.options) form.append(element("button", { type: "button", "data-do": "choose", "data-question": item.id, "data-text": option }, option));
  } else {
    form.append(element("input", { "aria-label": "Your answer", name: "answer" }), element("button", { type: "submit", class: "primary" }, "Answer"));
  }
  card.append(form);
  return card;
}

function drawEnd(turn) {
  const { outcome } = turn;
  if (outcome.status === "completed") return element("span", {});
  const box = element("section", { class: `end ${outcome.status}`, "aria-label": "How the turn ended" });
  box.append(element("p", {}, endText(outcome)));
  const picture = outcome.receipt && timeline(outcome.receipt);
  if (picture) {
    const details = element("details", { "data-key": `receipt-${turn.id}`, open: "" });
    details.append(element("summary", {}, summary(outcome.receipt) || "Receipt"), picture);
    box.append(details);
  }
  if (turn.isLast) {
    const row = element("div", { class: "actions" });
    row.append(button("Continue", "continue", turn.id), button("Forget this turn", "forget", turn.id));
    box.append(row);
  }
  return box;
}

export function endText(outcome) {
  if (outcome.status === "failed") return `This turn failed: ${outcome.error?.message || outcome.error?.type || "unknown error"}`;
  if (outcome.status === "timed_out") return "This turn ran out of time.";
  const { kind, message } = outcome.reason ?? {};
  if (kind === "preempted") return "This turn was interrupted by your next message.";
  if (kind === "user") return "You stopped this turn.";
  if (kind === "lease_lost") return `This turn was interrupted: ${message || "the process in which it ran has ended"}.`;
  return `This turn was stopped${message ? `: ${message}` : "."}`;
}

export function drawWaiting(waiting, editing) {
  const rows = waiting.map((turn) => {
    const row = element("div", { class: "row", "data-key": turn.id });
    const text = turn.texts.join(" ") || "(to be continued)";
    if (turn.id === editing) row.append(element("input", { "aria-label": "Edit message", "data-turn": turn.id, value: turn.texts.join("\n") }), button("Save", "save", turn.id));
    else if (turn.unseen) row.append(element("span", { title: text }, text), element("em", {}, "no worker has taken it yet"), button("Remove", "remove", turn.id));
    else row.append(element("span", { title: text }, text), button("Edit", "edit", turn.id), button("Remove", "remove", turn.id), button("Send now", "now", turn.id));
    return row;
  });
  return rows.length ? [element("h2", {}, `Waiting (${waiting.length})`), ...rows] : [];
}

function button(label, action, turn) { return element("button", { type: "button", "data-do": action, "data-turn": turn }, label); }

export function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
