// Changes the displayed nodes into the wanted ones, node by node, so that focus, selection, scroll position and half-typed
// text survive a redraw, and a click that began before it still reaches its button. Knows nothing of turns.

const KEPT = new Set(["data-touched"]);

export function morph(node, fresh) {
  if (node.isEqualNode(fresh)) return node;
  if (node.nodeType !== fresh.nodeType || node.nodeName !== fresh.nodeName || keyOf(node) !== keyOf(fresh)) {
    node.replaceWith(fresh);
    return fresh;
  }
  if (node.nodeType !== Node.ELEMENT_NODE) { node.data = fresh.data; return node; }
  attributes(node, fresh);
  morphChildren(node, [...fresh.childNodes]);
  return node;
}

export function morphChildren(parent, wanted) {
  const keyed = new Map([...parent.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  const fresh = new Set(wanted.map(keyOf).filter(Boolean));
  wanted.forEach((child, index) => {
    let current = parent.childNodes[index];
    const same = keyed.get(keyOf(child));
    if (same && same !== current) { parent.insertBefore(same, current ?? null); current = same; }
    // A node whose key is wanted further down is kept for its place, and not changed into this child.
    if (!current || (keyOf(current) !== keyOf(child) && fresh.has(keyOf(current)))) parent.insertBefore(child, current ?? null);
    else morph(current, child);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function keyOf(node) { return node.dataset?.key ?? ""; }

function attributes(node, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (name === "open" && node.dataset.touched) continue;
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  for (const { name } of [...node.attributes]) {
    if (fresh.hasAttribute(name) || KEPT.has(name) || (name === "open" && node.dataset.touched)) continue;
    node.removeAttribute(name);
  }
}
