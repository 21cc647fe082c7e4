// Ways to stop a turn from the page: the menu of the button, Esc Esc, and the second press. Knows nothing of how turns are
// displayed.

const CONFIRM_MS = 3000; // how long the second Esc is waited for
const SECOND_PRESS_MS = 1000; // an earlier second press is a double click

// The second press of Stop abandons what does not end. A press that comes too soon is a double click and counts as the
// first one. `ready()` tells the two apart, and `redraw` is called when its result changes.
export class SecondPress {
  constructor(redraw) {
    this.redraw = redraw;
    this.turn = null;
    this.since = 0;
    this.timer = 0;
  }

  // Whether the turn with this id (null for none) has been stopping for long enough.
  ready(turn) {
    if (turn !== this.turn) {
      clearTimeout(this.timer);
      this.turn = turn;
      this.since = Date.now();
      if (turn !== null) this.timer = setTimeout(this.redraw, SECOND_PRESS_MS + 10);
    }
    return turn !== null && Date.now() - this.since >= SECOND_PRESS_MS;
  }
}

// Stops the running turn when Esc is pressed twice. The key handler exists only while a turn runs. `ask` shows a toast and
// returns a function that removes it.
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
    // An Esc that closes a menu, a dialog or an input method's window does not count.
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || event.repeat) return;
    if (this.pending) { this.clear(); this.stop(); return; }
    const removeToast = this.ask("Press Esc again to stop");
    this.pending = { removeToast, timer: setTimeout(() => this.clear(), CONFIRM_MS) };
  }

  clear() {
    if (!this.pending) return;
    clearTimeout(this.pending.timer);
    this.pending.removeToast();
    this.pending = null;
  }
}

// A menu that can be used with the keyboard. `choose` gets the value of the chosen item.
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
    const index = items.indexOf(document.activeElement);
    if (event.key === "Escape") { event.preventDefault(); this.close(); }
    if (event.key === "ArrowDown") { event.preventDefault(); items[(index + 1) % items.length].focus(); }
    if (event.key === "ArrowUp") { event.preventDefault(); items[(index - 1 + items.length) % items.length].focus(); }
  }
}
