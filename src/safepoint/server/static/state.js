// The state of the page, computed from the events of the session, so that it is the same in every tab and after every
// reload. Does not touch the DOM.

export function emptySession(id) {
  return { id, turns: new Map(), closed: false };
}

const ENDED = new Set(["completed", "aborted", "timed_out", "failed"]);

export function isOver(turn) { return ENDED.has(turn.status); }

export function runningTurn(session) {
  for (const turn of session.turns.values()) if (turn.status === "running" || turn.status === "stopping") if (turn.started) return turn;
  return null;
}

export function waitingTurns(session) {
  return [...session.turns.values()].filter((turn) => !turn.started && !isOver(turn));
}

export function shownTurns(session) {
  const continued = new Set([...session.turns.values()].filter((turn) => turn.started).map((turn) => turn.continues));
  return [...session.turns.values()].filter((turn) => turn.started && !turn.forgotten && !continued.has(turn.id));
}

export function lastEnded(session) {
  return [...session.turns.values()].filter((turn) => isOver(turn) && turn.started && !turn.forgotten).at(-1) ?? null;
}

// Adds a turn whose message was accepted but has no event yet, because no worker has taken it.
export function expectTurn(session, { id, said: text, status }) {
  if (session.turns.has(id) || !text || status !== "queued") return;
  session.turns.set(id, newTurn(id, [text]));
  session.turns.get(id).unseen = true;
}

// `texts` are the messages of the turn. `boxes` has the items inside of the turn and inside of each of its tool calls, by
// the ids of the calls around them and their path: two calls of one tool have the same path, and two agents inside of one
// call have the same calls.
function newTurn(id, texts, continues) {
  const turn = { id, texts, continues, status: "queued", started: false, items: [], boxes: new Map(), outcome: null, forgotten: false };
  turn.boxes.set(boxKey([], []), { call: null, path: [], items: turn.items });
  return turn;
}

function boxKey(calls, path) { return JSON.stringify([calls, path]); }

// The innermost box around an event: it has the same calls and as much of the path as there is.
function boxOf(turn, calls, path) {
  for (let length = path.length; length >= 0; length--) {
    const box = turn.boxes.get(boxKey(calls, path.slice(0, length)));
    if (box) return box;
  }
  return turn.boxes.get(boxKey([], []));
}

// Applies one event. Returns the turn that it changed, or null.
export function apply(session, event) {
  switch (event.kind) {
    case "turn_queued": {
      const texts = (event.messages ?? []).map((message) => message.text ?? "").filter(Boolean);
      const turn = newTurn(event.turn_id, texts, event.continues);
      session.turns.set(turn.id, turn);
      return turn;
    }
    case "turn_edited": return change(session, event.turn_id, (turn) => { turn.texts = event.messages.map((message) => message.text ?? ""); });
    case "turn_started": return change(session, event.turn_id, (turn) => {
      session.turns.delete(turn.id); session.turns.set(turn.id, turn);
      const before = session.turns.get(turn.continues);
      if (before) { turn.texts = before.texts; turn.before = before; }
      turn.started = true; if (turn.status === "queued") turn.status = "running";
    });
    case "stop_requested": return change(session, event.turn_id, (turn) => { if (!isOver(turn)) { turn.status = "stopping"; turn.stopAt = event.at_point; turn.abandon = event.abandon ?? null; } });
    case "turn_ended": return change(session, event.turn_id, (turn) => { turn.status = event.outcome.status; turn.outcome = event.outcome; close(turn); });
    case "turn_forgotten": return change(session, event.turn_id, (turn) => { turn.forgotten = true; });
    case "session_closed": session.closed = true; return null;
    case "session_opened": session.closed = false; return null;
    default: {
      const turn = session.turns.get(event.run_id) ?? runningTurn(session);
      if (turn) applyToTurn(turn, event);
      return turn ?? null;
    }
  }
}

function change(session, id, update) {
  const turn = session.turns.get(id);
  if (turn) update(turn);
  return turn ?? null;
}

function applyToTurn(turn, event) {
  const path = event.path.slice(1), calls = event.calls ?? [];
  const box = boxOf(turn, calls, path);
  const list = box.items;
  const called = () => turn.boxes.get(boxKey([...calls, event.call_id], [...path, event.name]))?.call;
  // Agents side by side inside of one call, such as those of a flow, write answers of their own.
  const from = path.slice(box.path.length).join("/");
  const isAnswer = (item) => item.type === "answer" && item.from === from;
  switch (event.kind) {
    case "answer_started": list.push({ type: "answer", from, text: "", open: true }); break;
    case "answer_restarted": { const at = list.findLastIndex(isAnswer); if (at >= 0) list.splice(at, 1); break; }
    case "text_streamed": { const answer = list.findLast(isAnswer); if (answer?.open) answer.text += event.text; break; }
    case "answer_finished": for (const item of list) if (isAnswer(item)) item.open = false; break;
    case "tool_called": {
      const inner = [[...calls, event.call_id], [...path, event.name]];
      const call = { type: "tool", key: `${turn.id}/${boxKey(...inner)}/${list.length}`, name: event.name, arguments: event.arguments, status: "running", begun: !event.idempotency_key, content: "", inside: [], progress: null, ignored: null };
      list.push(call);
      turn.boxes.set(boxKey(...inner), { call, path: inner[1], items: call.inside });
      break;
    }
    case "call_recorded": { const call = called(); if (call) call.begun = true; break; }
    case "tool_ended": { const call = called(); if (call) { call.status = event.status; call.content = event.content; } break; }
    case "progress_made": if (box.call) box.call.progress = { message: event.message, fraction: event.fraction }; break;
    case "question_asked": list.push({ type: "question", id: event.question_id, text: event.text, options: event.options, state: "open" }); break;
    case "question_answered": settle(turn.items, event.question_id, "answered", event.text); break;
    case "question_withdrawn": settle(turn.items, event.question_id, "withdrawn"); break;
    case "abort_ignored": {
      turn.ignored = event.where ?? event.path.join("/");
      if (box.call) box.call.ignored = turn.ignored;
      break;
    }
  }
}

function* everything(items) {
  for (const item of items) { yield item; if (item.inside) yield* everything(item.inside); }
}

function settle(items, id, state, answer) {
  for (const item of everything(items)) if (item.type === "question" && item.id === id) { item.state = state; item.answer = answer; }
}

function close(turn) {
  for (const item of everything(turn.items)) {
    if (item.type === "answer") item.open = false;
    if (item.type === "question" && item.state === "open") item.state = "withdrawn";
    // The process has ended before it could report the call. A call that was recorded may have begun.
    if (item.type === "tool" && item.status === "running") item.status = item.begun ? "unknown" : "not_started";
  }
}
