// Ways to create a store: from an example, a file or an editor, or empty.

import { html, useRef, useState } from "../vendor/preact.js";
import { BookOpen, FileUp, Plug } from "../vendor/icons.js";
import { loadSample, SAMPLE } from "../entry/sample.js";
import { ask, memory, onServer } from "../server.js";
import { listStores } from "../session.js";
import { attempt, entry, mayWrite, stores } from "../state.js";
import { W } from "../view_words.js";
import { Command, Dialog, Icon } from "./parts.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9_.\\-]*";
const INJECT = () => `curl -X POST ${onServer("/api/memory/first/inject")} -d '{
  "nodes": [{"id": "emma", "type": "book"}, {"id": "austen", "type": "author"}],
  "edges": [{"from": "austen", "to": "emma", "relation_type": "WROTE"}]}'`;

/** Card with a file picker. */
function FileCard() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const take = (/** @type {any} */ event) => {
    const [file] = event.currentTarget.files;
    if (file) entry.value = { kind: "import", file };
    event.currentTarget.value = "";
  };
  return html`<section class="way">
    <h2><${Icon} of=${FileUp} />${W.dropFile}</h2><p>${W.dropFileText}</p>
    <button type="button" onClick=${() => field.current?.click()}>${W.chooseFile}</button>
    <input ref=${field} type="file" hidden accept=".jsonl,.ndjson,.json,.graphml,.xml,.csv,.tsv,.zip" aria-label=${W.chooseFile} onChange=${take} /></section>`;
}

/** Cards with ways to create a store. @param {{empty: boolean}} props whether there is no store yet */
export function FirstStore({ empty }) {
  const [loading, setLoading] = useState(false);
  const [asking, setAsking] = useState(false);
  const load = async () => {
    setAsking(false);
    setLoading(true);
    await attempt(loadSample);
    setLoading(false);
  };
  return html`${empty ? html`<p class="lead">${W.whatThisIs}</p>` : null}
    <div class="ways">
      ${mayWrite.value ? html`<section class="way"><h2><${Icon} of=${BookOpen} />${W.loadExample}</h2><p>${W.loadExampleText}</p><button type="button" class=${empty ? "primary" : ""} disabled=${loading} onClick=${() => (stores.value?.some(({ name }) => name === SAMPLE) ? setAsking(true) : load())}>${loading ? W.loading : W.loadExample}</button></section>` : null}
      ${mayWrite.value ? html`<${FileCard} />` : null}
      ${empty ? html`<section class="way"><h2><${Icon} of=${Plug} />${W.connectEditor}</h2><p>${W.connectEditorText}</p><${Command} label=${W.byMcp} text="kgserve mcp config --client claude-code --store first" /></section>` : null}
    </div>
    ${mayWrite.value ? html`<${NewStore} />` : null}
    ${asking ? html`<${Dialog} title=${W.loadExample} onClose=${() => setAsking(false)}><p>${W.exampleThere(SAMPLE)}</p><p class="row"><a href=${`#/${SAMPLE}`}>${W.openExample}</a><button type="button" onClick=${load}>${W.loadAnother}</button></p><//>` : null}
    ${empty ? html`<details><summary>${W.fromTerminal}</summary><${Command} label=${W.byInject} text=${INJECT()} /><${Command} label=${W.byImport} text="kgserve import first graph.jsonl" /></details>
      <p><button type="button" onClick=${() => attempt(listStores)}>${W.lookAgain}</button></p>` : null}`;
}

function NewStore() {
  const [name, setName] = useState("");
  const make = (/** @type {Event} */ event) => {
    event.preventDefault();
    void attempt(async () => {
      await ask("PUT", memory(name.trim()));
      await listStores();
      location.hash = `#/${encodeURIComponent(name.trim())}`;
    });
  };
  return html`<form class="row" onSubmit=${make}>
    <label>${W.newStore} <input required pattern=${NAME} value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} /></label>
    <button disabled=${!name.trim()}>${W.create}</button>
  </form>`;
}
