// The page: the selected session, the actions of the buttons, and when to redraw.

import { call, follow, takeTokenFromAddress } from "/static/api.js";
import { morph, morphChildren } from "/static/morph.js";
import { apply, emptySession, expectTurn, isOver, lastEnded, runningTurn, shownTurns, waitingTurns } from "/static/state.js";
import { EscEsc, Menu, SecondPress } from "/static/stop.js";
import { announce, connection, toast } from "/static/notices.js";
import { drawTurn, drawWaiting, element, endText } from "/static/view.js";

const $ = (id) => document.getElementById(id);
let session = null;
let unfollow = () => {}; // ends the event stream
let pendingStop = null; // the stop that was sent and has no event yet: {turn, at, abandon}
let editing = null; // the queued turn whose message is being edited
let lastOldSeq = 0; // events up to this number happened before the page was opened, and are not announced
const UNSEEN_MS = 600; // after this long without an event a sent message is displayed as waiting for a worker
const dirty = new Set();
let scheduled = false;

takeTokenFromAddress();
const esc = new EscEsc(() => stop("NOW"), (text) => toast(text));
new Menu($("stop-more"), $("stop-menu"), (at) => stop(at));
const second = new SecondPress(redraw);

function path(...parts) { return `/api/sessions/${[session.id, ...parts].map(encodeURIComponent).join("/")}`; }

async function open(id) {
  unfollow();
  session = emptySession(id);
  pendingStop = editing = null;
  lastOldSeq = Infinity;
  dirty.clear();
  if (location.hash.slice(1) !== id) location.hash = id;
  $("turns").replaceChildren();
  $("where").textContent = id.slice(0, 8);
  $("where").title = id;
  showSessions(false);
  redraw();
  const sessions = await listSessions();
  if (session.id !== id) return; // another session was selected meanwhile
  const found = sessions.find((one) => one.id === id);
  lastOldSeq = found?.last_seq ?? 0;
  for (const turn of found?.turns ?? []) expectTurn(session, turn);
  unfollow = follow(id, 0, { event: (seq, event) => onEvent(id, seq, event), state: (state) => onConnection(id, state) });
}

function onEvent(id, seq, event) {
  if (session.id !== id) return;
  const turn = apply(session, event);
  if (turn) dirty.add(turn.id);
  if (pendingStop && event.turn_id === pendingStop.turn && (event.kind === "turn_ended" || (event.kind === "stop_requested" && [undefined, event.abandon].includes(pendingStop.abandon)))) pendingStop = null;
  if (event.kind === "turn_ended" && seq > lastOldSeq) announce(event.outcome.status === "completed" ? "The answer is complete." : endText(event.outcome));
  if (event.kind === "turn_ended" || event.kind === "turn_forgotten" || event.kind === "turn_started") for (const other of session.turns.keys()) dirty.add(other);
  redraw();
}

function onConnection(id, state) {
  if (session.id !== id) return;
  const before = $("connection").dataset.state;
  connection(state);
  if (state === "gone") { toast("This session is no longer on the server.", true); begin(); }
  if (state === "connected" && before === "lost") listSessions().catch(() => {});
}

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

function draw() {
  const box = $("turns");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  const last = lastEnded(session);
  const drawn = new Map([...box.children].map((node) => [node.dataset.key, node]));
  shownTurns(session).forEach((turn, index) => {
    turn.isLast = turn === last && !runningTurn(session);
    let node = drawn.get(turn.id);
    if (!node) node = drawTurn(turn);
    else if (dirty.has(turn.id)) node = morph(node, drawTurn(turn));
    if (box.children[index] !== node) box.insertBefore(node, box.children[index] ?? null);
    drawn.delete(turn.id);
  });
  for (const node of drawn.values()) node.remove();
  dirty.clear();
  drawQueue();
  drawButtons();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function drawQueue() {
  const waiting = waitingTurns(session);
  if (!waiting.some((turn) => turn.id === editing)) editing = null;
  $("waiting").hidden = waiting.length === 0;
  morphChildren($("waiting"), drawWaiting(waiting, editing));
}

function drawButtons() {
  const turn = runningTurn(session);
  const sent = turn && pendingStop?.turn === turn.id ? pendingStop.at : null;
  const stopping = turn && (turn.status === "stopping" || sent);
  const atOnce = sent === "NOW" || turn?.stopAt === "NOW";
  const focused = document.activeElement;
  $("send").hidden = Boolean(turn);
  const offered = turn && !pendingStop && turn.status === "stopping" && turn.stopAt === "NOW" && turn.abandon !== 0;
  const canAbandon = second.ready(offered ? turn.id : null);
  if (canAbandon && $("dont-wait").hidden) announce("The turn has not ended yet. Press Don't wait to continue without operations that have not ended.");
  $("dont-wait").hidden = $("dont-wait-means").hidden = !canAbandon;
  $("stop-more").hidden = !turn;
  $("stop").hidden = !turn || canAbandon;
  $("stop").disabled = Boolean(stopping);
  $("stop").textContent = stopping ? "Stopping…" : "Stop";
  // A stop that waits for a safe point can still be made stricter, and nothing else.
  $("stop-more").disabled = Boolean(sent || (stopping && atOnce));
  for (const item of $("stop-menu").children) item.hidden = Boolean(stopping) && item.dataset.at !== "NOW";
  if (!turn || $("stop-more").disabled) $("stop-menu").hidden = true;
  // A hidden or disabled button receives no keys: move the focus to the message box.
  if (focused !== document.body && $("composer").contains(focused) && (focused.disabled || focused.closest("[hidden]"))) $("prompt").focus();
  esc.set(Boolean(turn) && !sent && !(stopping && atOnce));
}

async function stop(at, abandon) {
  const turn = runningTurn(session);
  if (!turn || pendingStop) return;
  const mine = pendingStop = { turn: turn.id, at, abandon };
  drawButtons();
  try {
    const ack = await call("POST", path("turns", turn.id, "stop"), { at, abandon }); // undefined fields are not sent
    if (ack.status === "unknown" || ack.status === "already_finished") { if (!isOver(turn)) toast("There was nothing left to stop."); if (pendingStop === mine) pendingStop = null; }
    else if (ack.level === "recorded") toast(`Stopping: ${ack.message}.`); // no worker has confirmed it
  } catch (error) {
    if (pendingStop === mine) { pendingStop = null; toast(`Stop failed: ${error.message}`, true); }
  }
  // Redraw everything and not only the buttons: the turn may have ended meanwhile, and Send must not appear before its end
  // does.
  redraw();
}

async function send(text, when_busy = "queue") {
  try {
    const [mine, turn] = [session, await call("POST", path("messages"), { text, when_busy })];
    // Usually its events come first. Without a worker there are none, and the message is displayed as waiting.
    setTimeout(() => { if (session === mine) { expectTurn(session, turn); redraw(); } }, UNSEEN_MS);
    return true;
  } catch (error) {
    toast(error.message, true);
    const box = $("prompt"); // what was written must not get lost
    box.value = box.value.trim() ? `${text}\n${box.value}` : text;
    return false;
  }
}

const ACTIONS = {
  choose: ({ question, text }) => answer(question, text),
  continue: ({ turn }) => reportingErrors(call("POST", path("turns", turn, "continue"))),
  forget: ({ turn }) => reportingErrors(call("POST", path("turns", turn, "forget"))),
  edit: ({ turn }) => { editing = turn; drawQueue(); $("waiting").querySelector("input")?.focus(); },
  save: () => endEditing(true),
  remove: async ({ turn }) => {
    if (await reportingErrors(call("DELETE", path("turns", turn))) && session.turns.get(turn)?.unseen) { session.turns.delete(turn); redraw(); }
  },
  now: async ({ turn }) => {
    const text = session.turns.get(turn).texts.join("\n");
    if (await reportingErrors(call("DELETE", path("turns", turn)))) await send(text, "interrupt");
  },
};

async function endEditing(keep) {
  const input = $("waiting").querySelector("input");
  const turn = editing;
  editing = null;
  if (keep && input?.value.trim()) await reportingErrors(call("PATCH", path("turns", turn), { text: input.value }));
  redraw();
}

function answer(id, text) { reportingErrors(call("POST", path("answers"), { question_id: id, text })); }

async function reportingErrors(promise) { try { await promise; return true; } catch (error) { toast(error.message, true); return false; } }

document.querySelector("main").addEventListener("click", (event) => {
  const summary = event.target.closest("summary");
  if (summary) summary.parentElement.dataset.touched = "1";
  const node = event.target.closest("button[data-do]");
  if (node) ACTIONS[node.dataset.do](node.dataset);
});
$("turns").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = event.target.elements.answer?.value.trim();
  if (text) answer(event.target.dataset.question, text);
});
$("waiting").addEventListener("keydown", (event) => {
  if (event.target.tagName !== "INPUT" || event.isComposing) return;
  if (event.key === "Enter" || event.key === "Escape") { event.preventDefault(); endEditing(event.key === "Enter"); $("prompt").focus(); }
});
$("stop").addEventListener("click", () => stop("NOW"));
$("dont-wait").addEventListener("click", () => stop("NOW", 0));
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value;
  if (!text.trim()) return;
  $("prompt").value = "";
  send(text);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("composer").requestSubmit(); }
});

function showSessions(shown) {
  document.body.classList.toggle("sessions-open", shown);
  $("toggle-sessions").setAttribute("aria-expanded", String(shown));
}

$("toggle-sessions").addEventListener("click", () => showSessions(!document.body.classList.contains("sessions-open")));
for (const node of [$("toggle-sessions"), $("sessions")]) node.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !document.body.classList.contains("sessions-open")) return;
  event.preventDefault(); // this Esc closed the list and must not count as a stop
  showSessions(false);
  $("toggle-sessions").focus();
});
$("new-session").addEventListener("click", async () => {
  try { await open((await call("POST", "/api/sessions", {})).id); $("prompt").focus(); } catch (error) { toast(error.message, true); }
});
$("session-list").addEventListener("click", (event) => { const id = event.target.closest("button")?.dataset.session; if (id) open(id).catch((error) => toast(error.message, true)); });
window.addEventListener("hashchange", () => { const id = location.hash.slice(1); if (session && id && id !== session.id) open(id).catch((error) => toast(error.message, true)); });
window.addEventListener("focus", () => { if (session) listSessions().catch(() => {}); });

async function listSessions() {
  const sessions = await call("GET", "/api/sessions");
  morphChildren($("session-list"), sessions.toReversed().map((one) => {
    const item = element("li", { "data-key": one.id });
    item.append(element("button", { type: "button", "data-session": one.id, "aria-current": String(one.id === session?.id) }, `${one.agent} · ${one.id.slice(0, 8)}`));
    return item;
  }));
  return sessions;
}

let lastError = ""; // the last error that was shown, so that a repeated one is not shown every second

async function begin() {
  try {
    const sessions = await call("GET", "/api/sessions");
    const wanted = location.hash.slice(1);
    const found = sessions.find((one) => one.id === wanted) ?? sessions.at(-1);
    await open(found ? found.id : (await call("POST", "/api/sessions", {})).id);
  } catch (error) {
    connection("lost");
    if (error.status === 401) toast("This server needs a token: open the address it printed.", true);
    else { if (error.status && error.message !== lastError) toast(lastError = error.message, true); setTimeout(begin, 1000); }
  }
}

begin();
