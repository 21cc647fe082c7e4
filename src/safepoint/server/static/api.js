// Requests to the server: JSON calls, and the event stream, which resumes after a lost connection. Knows nothing of the
// page.

const TOKEN_KEY = "safepoint-token";
const TIMEOUT_MS = 10_000; // a server that does not answer must not leave a button waiting for ever

export function takeTokenFromAddress() {
  const match = location.hash.match(/[#&]token=([^&]+)/);
  if (match) {
    sessionStorage.setItem(TOKEN_KEY, decodeURIComponent(match[1]));
    history.replaceState(null, "", location.pathname);
  }
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

export class ApiError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function call(method, path, body) {
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(), TIMEOUT_MS);
  const options = { method, signal: timeout.signal, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) options.body = JSON.stringify(body);
  let response, text;
  try { response = await fetch(path, options); text = await response.text(); } catch { throw new ApiError(0, "The server cannot be reached."); } finally { clearTimeout(timer); }
  const data = readJson(text);
  if (!response.ok) throw new ApiError(response.status, data?.error ?? response.statusText);
  return data;
}

function readJson(text) {
  try { return text ? JSON.parse(text) : null; } catch { return null; } // an HTML page of a proxy: its status says enough
}

// Reads the events after a number and reconnects after every break. `on.event(seq, event)` gets each event, and
// `on.state(state)` the state of the connection. Returns a function that ends it.
export function follow(session, after, on) {
  const stopped = new AbortController();
  let wait = 250;
  (async () => {
    while (!stopped.signal.aborted) {
      try {
        const path = `/api/sessions/${encodeURIComponent(session)}/events`;
        const response = await fetch(path, { headers: headers({ "last-event-id": String(after) }), signal: stopped.signal });
        if (!response.ok) throw new ApiError(response.status, await response.text());
        on.state("connected");
        wait = 250;
        for await (const { id, event, data } of messages(response.body)) {
          if (event === "event") { after = Number(id); on.event(after, JSON.parse(data)); }
        }
      } catch (error) {
        if (stopped.signal.aborted) return;
        if (error.status === 404) { on.state("gone"); return; }
      }
      if (stopped.signal.aborted) return;
      on.state("lost");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 4000);
    }
  })();
  return () => stopped.abort();
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r\n", "\n");
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const message = parse(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (message) yield message;
    }
  }
}

function parse(block) {
  const found = { id: "", event: "message", data: [] };
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) continue;
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (name === "data") found.data.push(value); else if (name in found) found[name] = value;
  }
  return found.data.length || found.event !== "message" ? { ...found, data: found.data.join("\n") } : null;
}
