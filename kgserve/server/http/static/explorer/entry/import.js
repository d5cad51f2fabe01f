// Import of a file or a pasted text: preview, column mapping, and result.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { FileUp } from "../vendor/icons.js";
import { overview } from "../load.js";
import { FormEnd, scrollToView } from "../panel/forms.js";
import { fresh } from "../panel/fresh.js";
import { Dialog, Icon, plain } from "../panel/parts.js";
import { ask, memory } from "../server.js";
import { listStores } from "../session.js";
import { say, store } from "../state.js";
import { DELIMITERS, EDGE_TARGETS, guessMapping, mappingFault, NODE_TARGETS, readCsv } from "./csv.js";
import { typed } from "./fields.js";
import { bodyOf, formatOf, pastedFile, previewCsv, readFile } from "./preview.js";
import { W } from "./words.js";

const NAME = "[A-Za-z0-9][A-Za-z0-9_.\\-]*";
const ROWS = 5;
const FAULTS = 10;
/** Maximum number of ids looked up to count existing nodes. */
const MOST_IDS = 1000;
const ENDINGS = ".jsonl,.ndjson,.json,.graphml,.xml,.csv,.tsv,.zip";

/** Return the default store name for a file. @param {File} file */
const nameFor = (file) => store.value || file.name.toLowerCase().replace(/\.[^.]*$/, "").replace(/[^a-z0-9_.-]+/g, "-").replace(/^[^a-z0-9]+/, "") || "imported";

/** Return the number of nodes or edges of a file that are now in the store. @param {any} answer @param {"nodes" | "edges"} what */
const taken = (answer, what) => answer[`${what}_created`] + answer[`${what}_updated`] + answer[`${what}_unchanged`];

/** @param {string} name */
async function openStore(name) {
  if (store.value === name) {
    fresh.value = new Set();
    await overview();
  } else location.hash = `#/${encodeURIComponent(name)}`;
}

/** File picker, with a field for pasted text. @param {{onFile: (file: File) => void}} props */
function Source({ onFile }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const take = () => {
    const file = pastedFile(text);
    if (file) onFile(file);
    else setWrong(W.notData);
  };
  return html`<div class="entry"><p>${W.chooseOrPaste}</p>
    <p class="row"><button type="button" onClick=${() => field.current?.click()}><${Icon} of=${FileUp} />${W.chooseFile}</button></p>
    <input ref=${field} type="file" hidden accept=${ENDINGS} aria-label=${W.chooseFile} onChange=${(/** @type {any} */ event) => event.currentTarget.files[0] && onFile(event.currentTarget.files[0])} />
    <label class="field">${W.pasteHere}<textarea rows="6" value=${text} onInput=${(/** @type {any} */ event) => setText(typed(event))}></textarea></label>
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}
    <p class="row"><button type="button" class="primary" disabled=${!text.trim()} onClick=${take}>${W.preview}</button></p></div>`;
}

/** @param {{title: string, rows: any[], fields: string[]}} props */
const Sample = ({ title, rows, fields }) => rows.length ? html`<h3>${title}</h3><div class="scroll rows" tabindex="0" role="region" aria-label=${title}><table><thead><tr>${fields.map((field) => html`<th key=${field} scope="col">${W.targets[field] ?? W.attributes}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, ROWS).map((row, at) => html`<tr key=${at}>${fields.map((field) => html`<td key=${field}>${plain(row[field]).slice(0, 120)}</td>`)}</tr>`)}</tbody></table></div>` : null;

/** @param {{preview: import("./preview.js").Preview, name: string}} props */
function PreviewTables({ preview, name }) {
  const [existing, setExisting] = useState(0);
  const ids = preview.nodes.slice(0, MOST_IDS).map((row) => row.id).filter((id) => typeof id === "string" && id);
  useEffect(() => {
    let wanted = true;
    setExisting(0);
    if (name === store.value && ids.length) {
      void ask("POST", memory(name, "get"), { body: { ids: [...new Set(ids)], valid_at: "any" } })
        .then((answer) => wanted && setExisting(answer.nodes.length), () => undefined);
    }
    return () => {
      wanted = false;
    };
  }, [name, ids.length, ids[0]]);
  return html`<p role="status">${(preview.whole ? W.found : W.foundStart)(preview.nodeCount, preview.edgeCount)}. ${existing ? html`<strong>${W.existing(existing)}</strong>` : null}</p>
    ${preview.faults.length ? html`<div class="note"><p>${W.wrongRows(preview.faults.length)}</p><${Faults} faults=${preview.faults} /></div>` : null}
    <${Sample} title=${W.nodes} rows=${preview.nodes} fields=${["id", "type", "summary", "content", "attributes"].filter((field) => field === "id" || preview.nodes.slice(0, ROWS).some((row) => row[field]))} />
    <${Sample} title=${W.edges} rows=${preview.edges} fields=${["from", "relation_type", "to"]} />`;
}

/** @param {{faults: {line?: number, message?: string, from?: string, relation_type?: string, to?: string, reason?: string}[]}} props */
const Faults = ({ faults }) => html`<ul>${faults.slice(0, FAULTS).map((one, at) => html`<li key=${at}>${W.lineOf(one.line)} ${one.message ?? `${one.from} –${one.relation_type}→ ${one.to}: ${one.reason}`}</li>`)}</ul>
  ${faults.length > FAULTS ? html`<p class="soft">${W.andMore(faults.length - FAULTS)}</p>` : null}`;

/** Form for the mapping of CSV columns. @param {{table: import("./csv.js").CsvTable, mapping: import("./csv.js").CsvMapping, onDelimiter: (delimiter: string) => void, onInput: (mapping: import("./csv.js").CsvMapping) => void}} props */
function MappingFields({ table, mapping, onDelimiter, onInput }) {
  const [header, first = []] = table.rows;
  const node = mapping.kind === "node";
  const choose = (/** @type {number} */ at) => (/** @type {any} */ event) => onInput({ ...mapping, targets: mapping.targets.map((target, i) => (i === at ? /** @type {import("./csv.js").Target} */ (typed(event)) : target)) });
  const typeColumn = mapping.targets.includes(node ? "type" : "relation_type");
  return html`<div class="pair-of-fields">
      <label class="field">${W.rowsAre}<select value=${mapping.kind} onChange=${(/** @type {any} */ event) => onInput(guessMapping(table, /** @type {"node" | "edge"} */ (typed(event))))}>${Object.entries(W.rowKinds).map(([kind, words]) => html`<option key=${kind} value=${kind}>${words}</option>`)}</select></label>
      <label class="field">${W.delimiter}<select value=${table.delimiter} onChange=${(/** @type {any} */ event) => onDelimiter(typed(event))}>${DELIMITERS.map((one) => html`<option key=${one} value=${one}>${W.delimiters[one]}</option>`)}</select></label>
      ${typeColumn ? null : html`<label class="field">${node ? W.fixedType : W.fixedRelation}<input value=${mapping.fixed} onInput=${(/** @type {any} */ event) => onInput({ ...mapping, fixed: typed(event) })} /></label>`}
      ${mapping.targets.includes("tags") ? html`<label class="field">${W.tagSeparator}<input value=${mapping.separator} onInput=${(/** @type {any} */ event) => onInput({ ...mapping, separator: typed(event) })} /></label>` : null}</div>
    <div class="scroll rows mapping" tabindex="0" role="region" aria-label=${W.mapping}><table><thead><tr><th scope="col">${W.column}</th><th scope="col">${W.sample}</th><th scope="col">${W.becomes}</th></tr></thead>
      <tbody>${header.map((name, at) => html`<tr key=${at}><th scope="row">${name || at + 1}</th><td>${(first[at] ?? "").slice(0, 60)}</td>
        <td><select aria-label=${W.becomesOf(name || String(at + 1))} value=${mapping.targets[at]} onChange=${choose(at)}>${(node ? NODE_TARGETS : EDGE_TARGETS).map((target) => html`<option key=${target} value=${target}>${W.targets[target]}</option>`)}</select></td></tr>`)}</tbody></table></div>`;
}

/** @param {{done: any, lines: number[] | null, onOpen: () => void}} props */
function LeftOut({ done, lines, onOpen }) {
  const faults = [...done.errors, ...done.edges_skipped].map((one) => ({ ...one, line: one.line && lines ? lines[one.line - 1] : one.line }));
  return html`<section aria-label=${W.notImported} ref=${scrollToView}>
    <p role="alert">${W.imported(taken(done, "nodes"), taken(done, "edges"))} ${W.leftOut(done.error_count + done.edges_skipped_count)}</p>
    <${Faults} faults=${faults} />
    ${taken(done, "nodes") + taken(done, "edges") ? html`<button type="button" onClick=${onOpen}>${W.openStore}</button>` : null}</section>`;
}

/** @param {{file: File, format: import("./preview.js").Format, onClose: () => void, onFile: (file: File) => void}} props */
function ImportForm({ file, format, onClose, onFile }) {
  const [read, setRead] = useState(/** @type {any} */ (null));
  const [mapping, setMapping] = useState(/** @type {any} */ (null));
  const [name, setName] = useState(() => nameFor(file));
  const [wrong, setWrong] = useState("");
  const [running, setRunning] = useState(false);
  /** Cached rows of the current mapping; converting 50 MB takes seconds. */
  const made = useRef(/** @type {any} */ (null));
  const [done, setDone] = useState(/** @type {any} */ (null));
  const take = (/** @type {any} */ found) => {
    setRead(found);
    setMapping(found.table ? guessMapping(found.table) : null);
  };
  const failed = (/** @type {unknown} */ error) => setWrong(/** @type {Error} */ (error).message);
  useEffect(() => {
    readFile(file, format).then(take, failed);
  }, [file]);
  if (!read) return wrong ? html`<p class="note" role="alert">${wrong}</p><${Source} onFile=${onFile} />` : html`<p role="status">${W.reading}</p>`;
  const fault = mapping ? mappingFault(mapping) : "";
  if (made.current?.table !== read.table || made.current?.mapping !== mapping) made.current = { table: read.table, mapping, csv: mapping && !fault ? previewCsv(read.table, mapping) : null };
  const { csv } = made.current;
  const preview = csv?.preview ?? read.preview;
  const open = () => {
    onClose();
    void openStore(name);
  };
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setRunning(true);
    setWrong("");
    setDone(null);
    try {
      const answer = await ask("POST", memory(name, "import"), { body: csv ? csv.body() : bodyOf(file, /** @type {any} */ (format)) });
      await listStores();
      if (answer.error_count + answer.edges_skipped_count) setDone(answer);
      else {
        open();
        say(W.imported(taken(answer, "nodes"), taken(answer, "edges")));
      }
    } catch (error) {
      failed(error);
    }
    setRunning(false);
  };
  return html`<form class="entry" onSubmit=${send}>
    <p class="soft">${W.formatIs[format]}${format === "zip" ? `. ${W.zipPreview}` : ""}</p>
    ${mapping ? html`<${MappingFields} table=${read.table} mapping=${mapping} onInput=${setMapping} onDelimiter=${(/** @type {string} */ one) => { try { take({ ...read, table: readCsv(read.text, one) }); } catch (error) { failed(error); } }} />` : null}
    ${fault ? html`<p class="note" role="status">${fault}</p>` : null}
    ${preview && !done ? html`<${PreviewTables} preview=${preview} name=${name} />` : null}
    <label class="field">${W.importInto}<input required pattern=${NAME} value=${name} onInput=${(/** @type {any} */ event) => setName(typed(event))} /><span class="help">${W.importHelp}</span></label>
    ${done ? html`<${LeftOut} done=${done} lines=${csv?.rows ?? null} onOpen=${open} />` : null}
    <${FormEnd} does=${running ? W.importing : W.import} wrong=${wrong} disabled=${running || Boolean(fault) || (csv && !csv.rows.length)} /></form>`;
}

/** @param {{file: File | null, onClose: () => void}} props */
export function ImportData({ file: given, onClose }) {
  const [file, setFile] = useState(given);
  const format = file ? formatOf(file.name) : undefined;
  return html`<${Dialog} title=${file ? W.importTitle(file.name) : W.importData} onClose=${onClose} wide>
    ${file && format ? html`<${ImportForm} key=${file} file=${file} format=${format} onClose=${onClose} onFile=${setFile} />` : html`${file ? html`<p class="note" role="alert">${W.unknownFile}</p>` : null}<${Source} onFile=${setFile} />`}<//>`;
}
