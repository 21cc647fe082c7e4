// Renders the text of a model as safe HTML: rendered by marked, cleaned by DOMPurify. No script in it can run.

import { marked } from "/static/vendor/marked.js";
import DOMPurify from "/static/vendor/purify.js";

marked.setOptions({ gfm: true, breaks: true, async: false });
const CLEAN = { USE_PROFILES: { html: true }, FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select", "iframe", "video", "audio", "img"], FORBID_ATTR: ["style", "id", "class", "name"] };

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") { node.setAttribute("target", "_blank"); node.setAttribute("rel", "noopener noreferrer nofollow"); }
});

export function render(text) { return DOMPurify.sanitize(marked.parse(text), CLEAN); }
