// Owns how turns look. Draws one turn from what the page knows of it; keeps what the reader has opened.

import { render } from "/static/markdown.js";
import { isOver } from "/static/state.js";
import { summary, timeline } from "/static/timeline.js";

const STATES = { running: "running", completed: "done", failed: "failed", interrupted: "interrupted", not_started: "not started", unknown: "outcome unknown" };

export function drawTurn(turn, actions) {
  const article = element("article", { class: "turn", "data-turn": turn.id, "data-status": turn.status, "aria-busy": String(!isOver(turn)) });
  for (const text of turn.said) article.append(element("div", { class: "said" }, text));
  const items = element("div", { class: "items" });
  for (const item of turn.before?.items ?? []) if (item.type === "tool" && item.status === "completed") items.append(drawItem(item, actions));
  for (const item of turn.items) items.append(drawItem(item, actions));
  article.append(items);
  article.append(isOver(turn) ? drawEnd(turn, actions) : element("p", { class: "state-line" }, stateLine(turn)));
  return article;
}

function stateLine(turn) {
  if (turn.status === "stopping") return turn.ignored ? `Stopping… waiting for ${turn.ignored}` : "Stopping…";
  return turn.items.some((item) => item.open && item.text) ? "" : "Working…";
}

function drawItem(item, actions) {
  if (item.type === "answer") {
    const box = element("div", { class: "answer" });
    box.innerHTML = render(item.text);
    return box;
  }
  return item.type === "tool" ? drawTool(item, actions) : drawQuestion(item, actions);
}

function drawTool(item, actions) {
  const box = element("details", { class: "tool", "data-status": item.status, "data-key": item.id });
  if (item.inside.length || item.status === "running") box.open = true;
  const head = element("summary", {});
  head.append(element("strong", {}, item.name), element("span", { class: "state" }, STATES[item.status] ?? item.status));
  const inside = element("div", { class: "inside" });
  inside.append(element("pre", {}, item.arguments));
  if (item.progress) {
    inside.append(element("span", {}, item.progress.message));
    if (item.progress.fraction !== null) {
      const bar = element("div", { class: "progress", role: "progressbar", "aria-valuenow": Math.round(item.progress.fraction * 100) });
      const fill = element("i", {});
      fill.style.width = `${item.progress.fraction * 100}%`;
      bar.append(fill);
      inside.append(bar);
    }
  }
  for (const nested of item.inside) inside.append(drawItem(nested, actions));
  if (item.content) inside.append(element("pre", {}, item.content.length > 4000 ? `${item.content.slice(0, 4000)}…` : item.content));
  box.append(head, inside);
  return box;
}

function drawQuestion(item, actions) {
  const card = element("section", { class: item.state === "open" ? "card" : "card over", "aria-label": "Question", "data-question": item.id });
  card.append(element("p", {}, item.text));
  if (item.state !== "open") {
    card.append(element("p", {}, item.state === "answered" ? `Answered: ${item.answer}` : "Withdrawn."));
    return card;
  }
  const form = element("form", {});
  if (item.options?.length) {
    for (const option of item.options) {
      const button = element("button", { type: "button" }, option);
      button.addEventListener("click", () => actions.answer(item.id, option));
      form.append(button);
    }
  } else {
    const input = element("input", { "aria-label": "Your answer", name: "answer" });
    form.append(input, element("button", { type: "submit", class: "primary" }, "Answer"));
    form.addEventListener("submit", (event) => { event.preventDefault(); if (input.value.trim()) actions.answer(item.id, input.value); });
  }
  card.append(form);
  return card;
}

function drawEnd(turn, actions) {
  const { outcome } = turn;
  if (outcome.status === "completed") return element("span", {});
  const box = element("section", { class: `end ${outcome.status}`, "aria-label": "How the turn ended" });
  box.append(element("p", {}, endText(outcome)));
  if (outcome.receipt?.entries?.length) {
    const details = element("details", { "data-key": `receipt-${turn.id}` });
    details.open = true;
    details.append(element("summary", {}, summary(outcome.receipt) || "Receipt"), timeline(outcome.receipt));
    box.append(details);
  }
  if (turn.isLast && turn.started) {
    const row = element("div", { class: "actions" });
    row.append(action("Continue", () => actions.goOn(turn.id)), action("Forget this turn", () => actions.forget(turn.id)));
    box.append(row);
  }
  return box;
}

function endText(outcome) {
  if (outcome.status === "failed") return `This turn failed: ${outcome.error?.message || outcome.error?.type || "unknown error"}`;
  if (outcome.status === "timed_out") return "The time for this turn was up.";
  const { kind, message } = outcome.reason ?? {};
  if (kind === "preempted") return "This turn made way for your next message.";
  if (kind === "user") return "You stopped this turn.";
  if (kind === "lease_lost") return "This turn was interrupted: the server was restarted.";
  return `This turn was stopped${message ? `: ${message}` : "."}`;
}

function action(label, run) {
  const button = element("button", { type: "button" }, label);
  button.addEventListener("click", run);
  return button;
}

export function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
