// Owns stopping from the page: the button, its menu, Esc Esc, and the second press. Knows nothing of how turns are shown.

const WINDOW_MS = 3000;
const PRESS_MS = 1000;

// The second press of Stop does not wait for what does not end. One that comes too soon is a double click, and the same
// as the first: `ready` tells, and `redraw` is called when that has changed.
export class SecondPress {
  constructor(redraw) {
    this.redraw = redraw;
    this.turn = null;
    this.since = 0;
    this.timer = 0;
  }

  // True: this turn (its id, or null for none) has been stopping for long enough.
  ready(turn) {
    if (turn !== this.turn) {
      clearTimeout(this.timer);
      this.turn = turn;
      this.since = Date.now();
      if (turn !== null) this.timer = setTimeout(this.redraw, PRESS_MS + 10);
    }
    return turn !== null && Date.now() - this.since >= PRESS_MS;
  }
}

// The key handler exists only while a turn runs. `ask` shows the toast and returns how to take it away again.
export class EscEsc {
  constructor(stop, ask) {
    this.stop = stop;
    this.ask = ask;
    this.pending = null;
    this.listener = (event) => this.pressed(event);
    this.on = false;
  }

  set(running) {
    if (running === this.on) return;
    this.on = running;
    if (running) document.addEventListener("keydown", this.listener);
    else { document.removeEventListener("keydown", this.listener); this.clear(); }
  }

  pressed(event) {
    // An Esc that closes a menu, a dialog or an IME window is not ours.
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || event.repeat) return;
    if (this.pending) { this.clear(); this.stop(); return; }
    const takeAway = this.ask("Press Esc again to stop");
    this.pending = { takeAway, timer: setTimeout(() => this.clear(), WINDOW_MS) };
  }

  clear() {
    if (!this.pending) return;
    clearTimeout(this.pending.timer);
    this.pending.takeAway();
    this.pending = null;
  }
}

// A menu that the keyboard can use; `choose` gets the value of the chosen item.
export class Menu {
  constructor(button, menu, choose) {
    this.button = button;
    this.menu = menu;
    button.addEventListener("click", () => (menu.hidden ? this.open() : this.close()));
    menu.addEventListener("click", (event) => {
      const item = event.target.closest("[data-at]");
      if (item) { this.close(); choose(item.dataset.at); }
    });
    menu.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerdown", (event) => { if (!menu.hidden && !menu.contains(event.target) && event.target !== button) this.close(); });
  }

  open() { this.menu.hidden = false; this.button.setAttribute("aria-expanded", "true"); this.items()[0].focus(); }

  close() { this.menu.hidden = true; this.button.setAttribute("aria-expanded", "false"); this.button.focus(); }

  items() { return [...this.menu.querySelectorAll("button")].filter((item) => !item.hidden); }

  key(event) {
    const items = this.items();
    const at = items.indexOf(document.activeElement);
    if (event.key === "Escape") { event.preventDefault(); this.close(); }
    if (event.key === "ArrowDown") { event.preventDefault(); items[(at + 1) % items.length].focus(); }
    if (event.key === "ArrowUp") { event.preventDefault(); items[(at - 1 + items.length) % items.length].focus(); }
  }
}
