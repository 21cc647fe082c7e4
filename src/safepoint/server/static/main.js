// Owns the page: which session is shown, what the buttons do, and when what is drawn again.

import { call, follow, takeTokenFromAddress } from "/static/api.js";
import { apply, emptySession, isOver, lastEnded, runningTurn, shownTurns, waitingTurns } from "/static/state.js";
import { EscEsc, Menu } from "/static/stop.js";
import { drawTurn, element } from "/static/view.js";

const $ = (id) => document.getElementById(id);
let session = null;
let leave = () => {};
let asked = null; // the turn whose stop was sent and not yet heard of
const dirty = new Set();
let scheduled = false;

takeTokenFromAddress();
const esc = new EscEsc(() => stop("NOW"), (text) => toast(text));
new Menu($("stop-more"), $("stop-menu"), stop);

function path(...parts) { return `/api/sessions/${[session.id, ...parts].map(encodeURIComponent).join("/")}`; }

async function open(id) {
  leave();
  session = emptySession(id);
  asked = null;
  location.hash = id;
  $("turns").replaceChildren();
  $("where").textContent = id.slice(0, 8);
  $("where").title = id;
  document.body.classList.remove("sessions-open");
  await listSessions();
  leave = follow(id, 0, { event: heard, state: connection });
  redraw();
}

function heard(seq, event) {
  const turn = apply(session, event);
  if (turn) dirty.add(turn.id);
  if (asked && (event.kind === "stop_requested" || event.kind === "turn_ended") && event.turn_id === asked) asked = null;
  if (event.kind === "turn_ended") announce(event.outcome.status === "completed" ? "The answer is complete." : event.outcome.status === "aborted" ? "The turn was stopped." : "The turn has failed.");
  if (event.kind === "turn_ended" || event.kind === "turn_forgotten" || event.kind === "turn_started") for (const other of session.turns.keys()) dirty.add(other);
  redraw();
}

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

function draw() {
  const box = $("turns");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  const shown = shownTurns(session);
  const last = lastEnded(session);
  const known = new Map([...box.children].map((node) => [node.dataset.turn, node]));
  shown.forEach((turn, index) => {
    turn.isLast = turn === last && !runningTurn(session);
    let node = known.get(turn.id);
    if (!node || dirty.has(turn.id)) {
      const fresh = drawTurn(turn, { answer, goOn, forget });
      if (node) { keepOpen(node, fresh); node.replaceWith(fresh); }
      node = fresh;
    }
    if (box.children[index] !== node) box.insertBefore(node, box.children[index] ?? null);
    known.delete(turn.id);
  });
  for (const node of known.values()) node.remove();
  dirty.clear();
  drawWaiting();
  drawButtons();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function keepOpen(before, after) {
  for (const node of before.querySelectorAll("details[data-key]")) {
    const same = after.querySelector(`details[data-key="${CSS.escape(node.dataset.key)}"]`);
    if (same && node.dataset.touched) { same.open = node.open; same.dataset.touched = "1"; }
  }
  const typing = before.querySelector("input[name=answer]:focus");
  const input = after.querySelector("input[name=answer]");
  const value = before.querySelector("input[name=answer]")?.value;
  if (input && value) input.value = value;
  if (typing && input) queueMicrotask(() => input.focus());
}

$("turns").addEventListener("click", (event) => {
  const summary = event.target.closest("summary");
  if (summary) summary.parentElement.dataset.touched = "1";
});

function drawWaiting() {
  const waiting = waitingTurns(session);
  const box = $("waiting");
  const editing = box.querySelector("input");
  if (editing && waiting.some((turn) => turn.id === editing.dataset.turn)) return;
  box.hidden = waiting.length === 0;
  box.replaceChildren(element("h2", {}, `Waiting (${waiting.length})`));
  for (const turn of waiting) {
    const row = element("div", { class: "row", "data-turn": turn.id });
    const text = turn.said.join(" ") || "(to be continued)";
    row.append(element("span", { title: text }, text), button("Edit", () => edit(row, turn)), button("Remove", () => quietly(call("DELETE", path("turns", turn.id)))), button("Send now", () => sendNow(turn)));
    box.append(row);
  }
}

function drawButtons() {
  const turn = runningTurn(session);
  const stopping = turn && (turn.status === "stopping" || asked === turn.id);
  $("send").hidden = Boolean(turn);
  $("stop").hidden = $("stop-more").hidden = !turn;
  $("stop").disabled = $("stop-more").disabled = Boolean(stopping);
  $("stop").textContent = stopping ? "Stopping…" : "Stop";
  if (!turn) $("stop-menu").hidden = true;
  esc.set(Boolean(turn) && !stopping);
}

async function stop(at) {
  const turn = runningTurn(session);
  if (!turn || asked) return;
  asked = turn.id;
  drawButtons();
  try {
    const ack = await call("POST", path("turns", turn.id, "stop"), { at });
    if (ack.status === "unknown" || ack.status === "already_finished") { asked = null; toast("There was nothing left to stop."); }
  } catch (error) {
    asked = null;
    toast(`Stop failed: ${error.message}`, true);
  }
  drawButtons();
}

async function send(text, when_busy = "queue") {
  try {
    await call("POST", path("messages"), { text, when_busy });
    return true;
  } catch (error) { toast(error.message, true); return false; }
}

async function sendNow(turn) {
  const text = turn.said.join("\n");
  try { await call("DELETE", path("turns", turn.id)); } catch { return; }
  await send(text, "interrupt");
}

function edit(row, turn) {
  const input = element("input", { "aria-label": "Edit message", "data-turn": turn.id });
  input.value = turn.said.join("\n");
  const done = async (save) => {
    const text = input.value;
    input.remove();
    if (save && text.trim()) await quietly(call("PATCH", path("turns", turn.id), { text }));
    redraw();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) { event.preventDefault(); done(true); }
    if (event.key === "Escape") { event.preventDefault(); done(false); }
  });
  row.replaceChildren(input, button("Save", () => done(true)));
  input.focus();
}

function answer(id, text) { quietly(call("POST", path("answers"), { question_id: id, text })); }
function goOn(id) { quietly(call("POST", path("turns", id, "continue"))); }
function forget(id) { quietly(call("POST", path("turns", id, "forget"))); }

async function quietly(promise) { try { await promise; } catch (error) { toast(error.message, true); } }

function button(label, run) {
  const node = element("button", { type: "button" }, label);
  node.addEventListener("click", run);
  return node;
}

$("stop").addEventListener("click", () => stop("NOW"));
$("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const box = $("prompt");
  const text = box.value;
  if (!text.trim()) return;
  box.value = "";
  if (!(await send(text))) box.value = text;
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("composer").requestSubmit(); }
});
$("toggle-sessions").addEventListener("click", () => {
  const shown = document.body.classList.toggle("sessions-open");
  $("toggle-sessions").setAttribute("aria-expanded", String(shown));
});
$("new-session").addEventListener("click", async () => {
  try { open((await call("POST", "/api/sessions", {})).id); } catch (error) { toast(error.message, true); }
});

async function listSessions() {
  const sessions = await call("GET", "/api/sessions");
  $("session-list").replaceChildren(...sessions.toReversed().map((one) => {
    const item = element("li", {});
    const node = button(`${one.agent} · ${one.id.slice(0, 8)}`, () => open(one.id));
    node.setAttribute("aria-current", String(one.id === session?.id));
    item.append(node);
    return item;
  }));
  return sessions;
}

function connection(state) {
  $("connection").textContent = { connected: "connected", lost: "reconnecting…", gone: "session not found" }[state];
  $("connection").classList.toggle("lost", state !== "connected");
}

function toast(text, error = false) {
  const node = element("div", { class: error ? "toast error" : "toast" }, text);
  $("toasts").append(node);
  const timer = setTimeout(() => node.remove(), error ? 6000 : 3000);
  return () => { clearTimeout(timer); node.remove(); };
}

function announce(text) { $("announcer").textContent = text; }

async function begin() {
  try {
    const sessions = await call("GET", "/api/sessions");
    const wanted = location.hash.slice(1);
    const known = sessions.find((one) => one.id === wanted) ?? sessions.at(-1);
    await open(known ? known.id : (await call("POST", "/api/sessions", {})).id);
  } catch (error) {
    connection("lost");
    toast(error.status === 401 ? "This server needs a token: open the address it printed." : error.message, true);
    if (error.status === 0) setTimeout(begin, 1000);
  }
}

begin();
