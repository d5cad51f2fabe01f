// Help dialog with all keyboard shortcuts.

import { html } from "../vendor/preact.js";
import { helpOpen, mayWrite } from "../state.js";
import { W } from "../view_words.js";
import { Dialog } from "./parts.js";

export function Help() {
  const close = () => {
    helpOpen.value = false;
  };
  return html`<${Dialog} title=${W.help} onClose=${close}>
    <table><tbody>${W.keys.filter(([keys]) => mayWrite.value || !/^(n|e|Ctrl Z)$/.test(keys)).map(([keys, what]) => html`<tr key=${keys}><th scope="row"><kbd>${keys}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p><a href="docs">${W.apiPage}</a></p><//>`;
}
