// Owns what the page knows: a fold over the session's events, the same in every tab and after every reload. No DOM.

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

// A message that was accepted and that no event has told of yet: nobody is there who works on it.
export function expectTurn(session, { id, said, status }) {
  if (session.turns.has(id) || !said || status !== "queued") return;
  session.turns.set(id, newTurn(id, [said]));
  session.turns.get(id).unseen = true;
}

function newTurn(id, said, continues) {
  const turn = { id, said, continues, status: "queued", started: false, items: [], boxes: new Map(), outcome: null, forgotten: false };
  turn.boxes.set("", turn.items);
  return turn;
}

// Takes in one event; returns the turn it changed, or null.
export function apply(session, event) {
  switch (event.kind) {
    case "turn_queued": {
      const said = (event.messages ?? []).map((message) => message.text ?? "").filter(Boolean);
      const turn = newTurn(event.turn_id, said, event.continues);
      session.turns.set(turn.id, turn);
      return turn;
    }
    case "turn_edited": return change(session, event.turn_id, (turn) => { turn.said = event.messages.map((message) => message.text ?? ""); });
    case "turn_started": return change(session, event.turn_id, (turn) => {
      session.turns.delete(turn.id); session.turns.set(turn.id, turn);
      const before = session.turns.get(turn.continues);
      if (before) { turn.said = before.said; turn.before = before; }
      turn.started = true; if (turn.status === "queued") turn.status = "running";
    });
    case "stop_requested": return change(session, event.turn_id, (turn) => { if (!isOver(turn)) { turn.status = "stopping"; turn.stopAt = event.at_point; turn.abandon = event.abandon ?? null; } });
    case "turn_ended": return change(session, event.turn_id, (turn) => { turn.status = event.outcome.status; turn.outcome = event.outcome; close(turn); });
    case "turn_forgotten": return change(session, event.turn_id, (turn) => { turn.forgotten = true; });
    case "session_closed": session.closed = true; return null;
    case "session_opened": session.closed = false; return null;
    default: {
      const turn = session.turns.get(event.run_id) ?? runningTurn(session);
      if (turn) hear(turn, event);
      return turn ?? null;
    }
  }
}

function change(session, id, how) {
  const turn = session.turns.get(id);
  if (turn) how(turn);
  return turn ?? null;
}

function hear(turn, event) {
  const path = event.path.slice(1).join("/");
  const box = turn.boxes.get(path) ?? turn.boxes.get(path.split("/").slice(0, -1).join("/")) ?? turn.items;
  const last = box.at(-1);
  switch (event.kind) {
    case "answer_started": box.push({ type: "answer", text: "", open: true }); break;
    case "answer_restarted": if (last?.type === "answer") box.pop(); break;
    case "text_streamed": if (last?.type === "answer" && last.open) last.text += event.text; break;
    case "answer_finished": for (const item of box) if (item.type === "answer") item.open = false; break;
    case "tool_called": {
      const inside = [];
      box.push({ type: "tool", id: event.call_id, key: `${path}/${event.call_id}/${box.length}`, name: event.name, arguments: event.arguments, status: "running", begun: !event.idempotency_key, content: "", inside, progress: null });
      turn.boxes.set([...event.path.slice(1), event.name].join("/"), inside);
      break;
    }
    case "call_recorded": {
      const call = box.findLast((item) => item.type === "tool" && item.id === event.call_id && item.status === "running");
      if (call) call.begun = true;
      break;
    }
    case "tool_ended": {
      const call = box.findLast((item) => item.type === "tool" && item.id === event.call_id && item.status === "running");
      if (call) { call.status = event.status; call.content = event.content; }
      break;
    }
    case "progress_made": {
      const around = turn.boxes.get(path.split("/").slice(0, -1).join("/")) ?? turn.items;
      const call = around.findLast((item) => item.type === "tool" && item.name === event.path.at(-1) && item.status === "running");
      if (call) call.progress = { message: event.message, fraction: event.fraction };
      break;
    }
    case "question_asked": box.push({ type: "question", id: event.question_id, text: event.text, options: event.options, state: "open" }); break;
    case "question_answered": settle(turn.items, event.question_id, "answered", event.text); break;
    case "question_withdrawn": settle(turn.items, event.question_id, "withdrawn"); break;
    case "abort_ignored": turn.ignored = event.where ?? event.path.join("/"); break;
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
    // Its process has ended before it could say what became of the call: only one that was not on record has not begun.
    if (item.type === "tool" && item.status === "running") item.status = item.begun ? "unknown" : "not_started";
  }
}
