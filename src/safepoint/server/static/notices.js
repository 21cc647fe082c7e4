// Notices outside of the conversation: toasts, the state of the connection, and texts for screen readers.

const $ = (id) => document.getElementById(id);
const SECONDS = { plain: 3, error: 6 };

// Shows a text for some seconds. Returns a function that removes it.
export function toast(text, error = false) {
  const node = document.createElement("div");
  node.className = error ? "toast error" : "toast";
  node.textContent = text;
  $("toasts").append(node);
  const timer = setTimeout(() => node.remove(), SECONDS[error ? "error" : "plain"] * 1000);
  return () => { clearTimeout(timer); node.remove(); };
}

export function announce(text) { $("announcer").textContent = text; }

export function connection(state) {
  const node = $("connection");
  node.textContent = { connected: "connected", lost: "reconnecting…", gone: "session not found" }[state];
  node.dataset.state = state;
  node.classList.toggle("lost", state !== "connected");
}
