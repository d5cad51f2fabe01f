// Command bar: search, nodes, Cypher, stores, and actions.

import { html, signal } from "../vendor/preact.js";
import { Search } from "../vendor/icons.js";
import { searchText, store } from "../state.js";
import { W } from "../words.js";
import { Icon } from "./parts.js";
import { searchSoon } from "./search.js";

const open = signal(false);
/** Index of the command that Enter runs; -1: the default. */
const chosen = signal(-1);
/** Module of commands, once loaded. */
const known = signal(/** @type {typeof import("./commands.js") | null} */ (null));

/** Load the commands. Called early, so that a search can report a lost connection. */
export async function loadCommands() {
  known.value ??= await import("./commands.js");
  return known.value;
}

export function CommandBar() {
  const all = open.value ? (known.value?.listCommands() ?? []) : [];
  const close = () => {
    open.value = false;
    chosen.value = -1;
  };
  const run = (/** @type {(() => void) | undefined} */ task) => {
    close();
    if (document.activeElement?.id === "search") /** @type {HTMLElement} */ (document.activeElement).blur();
    task?.();
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const picked = all[chosen.value]?.run;
    void loadCommands().then(({ defaultCommand }) => run(picked ?? defaultCommand()));
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step && all.length) {
      open.value = true;
      chosen.value = (chosen.value + step + all.length + (chosen.value < 0 && step < 0 ? 1 : 0)) % all.length;
      document.getElementById(`command-${chosen.value}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Escape" && open.value) close();
    else return;
    event.preventDefault();
  };
  const typed = (/** @type {any} */ event) => {
    searchText.value = event.currentTarget.value;
    open.value = true;
    chosen.value = -1;
    if (store.value && !known.value?.CYPHER.test(searchText.value)) searchSoon();
  };
  return html`<form role="search" class="search" onSubmit=${submit}>
    <${Icon} of=${Search} />
    <input id="search" type="search" role="combobox" enterkeyhint="search" autocomplete="off" aria-label=${W.command} placeholder=${store.value ? W.commandHint : W.commandHintStores} aria-expanded=${all.length > 0} aria-controls="commands" aria-autocomplete="list"
      aria-activedescendant=${chosen.value >= 0 ? `command-${chosen.value}` : undefined} value=${searchText.value}
      onInput=${typed} onKeyDown=${key} onFocus=${() => { open.value = true; void loadCommands(); }} onBlur=${close} />
    <kbd aria-hidden="true">${W.commandKey}</kbd>
    <ul id="commands" class="menu" role="listbox" aria-label=${W.commands} hidden=${!all.length}>${all.map((one, i) => html`
      ${one.group === all[i - 1]?.group ? null : html`<li key=${`group ${one.group}`} role="presentation" class="group">${W.commandGroups[one.group]}</li>`}
      <li key=${one.key} id=${`command-${i}`} role="option" aria-selected=${chosen.value === i} onMouseDown=${(/** @type {Event} */ event) => { event.preventDefault(); run(one.run); }}>
        ${one.icon}<span class="grow">${one.label}</span>${one.note ? html`<span class="soft">${one.note}</span>` : null}</li>`)}</ul>
  </form>`;
}
