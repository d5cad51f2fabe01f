// Ways to a store: an example, a file, an editor, or an empty one.

import { html, useRef, useState } from "../vendor/preact.js";
import { BookOpen, FileUp, Plug } from "../vendor/icons.js";
import { ask, memory, onServer } from "../server.js";
import { listStores } from "../session.js";
import { attempt, mayWrite, say } from "../state.js";
import { W } from "../view_words.js";
import { Command, Dialog, Icon } from "./parts.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9_.\\-]*";
/** Media types by the ending of a file. */
const MEDIA_TYPES = { jsonl: "application/x-ndjson", ndjson: "application/x-ndjson", json: "application/x-ndjson", graphml: "application/xml", xml: "application/xml", zip: "application/zip" };
/** Errors of an import that are listed. */
const ERRORS = 10;
const EXAMPLE = "example";
/** Commits of the example, one after the other, so that it has a past. */
const COMMITS = [
  {
    nodes: [
      { id: "austen", type: "writer", summary: "Jane Austen", content: "Jane Austen, English novelist", valid_from: "1775-12-16T00:00:00Z", valid_to: "1817-07-18T00:00:00Z" },
      { id: "eliot", type: "writer", summary: "George Eliot", content: "George Eliot, novelist, poet and journalist", valid_from: "1819-11-22T00:00:00Z", valid_to: "1880-12-22T00:00:00Z" },
    ],
  },
  {
    nodes: [
      { id: "emma", type: "novel", summary: "Emma", content: "A novel of youthful pride" },
      { id: "persuasion", type: "novel", summary: "Persuasion", content: "A second chance by the sea" },
      { id: "middlemarch", type: "novel", summary: "Middlemarch", content: "A study of provincial life" },
    ],
    edges: [
      { from: "austen", to: "emma", relation_type: "WROTE" },
      { from: "austen", to: "persuasion", relation_type: "WROTE" },
      { from: "eliot", to: "middlemarch", relation_type: "WROTE" },
    ],
  },
  {
    nodes: [
      { id: "highbury", type: "place", summary: "Highbury", content: "A village near London" },
      { id: "bath", type: "place", summary: "Bath", content: "A town with warm springs" },
      { id: "emma", type: "novel", summary: "Emma", content: "A comedy of manners in four volumes" },
    ],
    edges: [
      { from: "emma", to: "highbury", relation_type: "SET_IN" },
      { from: "persuasion", to: "bath", relation_type: "SET_IN" },
      { from: "eliot", to: "austen", relation_type: "READ", weight: 0.5 },
    ],
  },
];
const INJECT = () => `curl -X POST ${onServer("/api/memory/first/inject")} -d '{
  "nodes": [{"id": "emma", "type": "book"}, {"id": "austen", "type": "author"}],
  "edges": [{"from": "austen", "to": "emma", "relation_type": "WROTE"}]}'`;

/** @param {string} name */
const openStore = (name) => {
  location.hash = `#/${encodeURIComponent(name)}?valid_at=any`;
};

const loadExample = () =>
  attempt(async () => {
    for (const commit of COMMITS) await ask("POST", memory(EXAMPLE, "inject"), { body: commit });
    await listStores();
    openStore(EXAMPLE);
  });

/** Number of nodes or edges of a file that are in the store now. @param {any} answer @param {"nodes" | "edges"} what */
const taken = (answer, what) => answer[`${what}_created`] + answer[`${what}_updated`] + answer[`${what}_unchanged`];

/** Import a file into a store. @param {{file: File, onClose: () => void}} props */
function ImportFile({ file, onClose }) {
  const [base, ending = ""] = file.name.toLowerCase().split(/\.(?=[^.]*$)/);
  const type = MEDIA_TYPES[ending];
  const [name, setName] = useState(base.replace(/[^a-z0-9_.-]+/g, "-").replace(/^[^a-z0-9]+/, "") || "imported");
  const [running, setRunning] = useState(false);
  const [done, setDone] = useState(/** @type {any} */ (null));
  const open = () => {
    onClose();
    openStore(name);
  };
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setRunning(true);
    await attempt(async () => {
      const answer = await ask("POST", memory(name, "import"), { body: new Blob([file], { type }) });
      await listStores();
      setDone(answer);
      if (!answer.ok) return;
      open();
      say(W.imported(taken(answer, "nodes"), taken(answer, "edges")));
    });
    setRunning(false);
  };
  return html`<${Dialog} title=${W.importTitle(file.name)} onClose=${onClose}><form onSubmit=${send}>
    ${type
      ? html`<label>${W.importInto} <input required pattern=${NAME} value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} /></label>
        <p class="help">${W.importHelp}</p><button disabled=${running}>${running ? W.importing : W.import}</button>`
      : html`<p class="note" role="alert">${W.unknownFile}</p>`}</form>
    ${done && !done.ok ? html`<section aria-label=${W.notImported}>
      <p role="alert">${W.imported(taken(done, "nodes"), taken(done, "edges"))} ${W.leftOut(done.error_count + done.edges_skipped_count)}</p>
      <ul>${[...done.errors, ...done.edges_skipped].slice(0, ERRORS).map((one, i) => html`<li key=${i}>${W.lineOf(one.line)} ${one.message ?? `${one.from} –${one.relation_type}→ ${one.to}: ${one.reason}`}</li>`)}</ul>
      ${taken(done, "nodes") ? html`<button type="button" onClick=${open}>${W.openStore}</button>` : null}</section>` : null}<//>`;
}

function FileCard() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [over, setOver] = useState(false);
  const drop = (/** @type {any} */ event) => {
    event.preventDefault();
    setOver(false);
    setFile(event.dataTransfer.files[0] ?? null);
  };
  const drag = (/** @type {any} */ event) => {
    event.preventDefault();
    setOver(true);
  };
  return html`<section class="way" data-over=${over} onDragOver=${drag} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <h2><${Icon} of=${FileUp} />${W.dropFile}</h2><p>${W.dropFileText}</p>
    <button type="button" onClick=${() => field.current?.click()}>${W.chooseFile}</button>
    <input ref=${field} type="file" hidden accept=".jsonl,.ndjson,.json,.graphml,.xml,.zip" aria-label=${W.chooseFile} onChange=${(/** @type {any} */ event) => { setFile(event.currentTarget.files[0] ?? null); event.currentTarget.value = ""; }} />
    ${file ? html`<${ImportFile} file=${file} onClose=${() => setFile(null)} />` : null}</section>`;
}

/** Three ways to begin. @param {{empty: boolean}} props whether there is no store yet */
export function FirstStore({ empty }) {
  return html`${empty ? html`<p class="lead">${W.whatThisIs}</p>` : null}
    <div class="ways">
      ${mayWrite.value && empty ? html`<section class="way"><h2><${Icon} of=${BookOpen} />${W.loadExample}</h2><p>${W.loadExampleText}</p><button type="button" class="primary" onClick=${loadExample}>${W.loadExample}</button></section>` : null}
      ${mayWrite.value ? html`<${FileCard} />` : null}
      ${empty ? html`<section class="way"><h2><${Icon} of=${Plug} />${W.connectEditor}</h2><p>${W.connectEditorText}</p><${Command} label=${W.byMcp} text="kgserve mcp config --client claude-code --store first" /></section>` : null}
    </div>
    ${mayWrite.value ? html`<${NewStore} />` : null}
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
