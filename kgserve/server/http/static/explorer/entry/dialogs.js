// Dialogs for a new node, a new edge, and data to import.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { Dialog } from "../panel/parts.js";
import { connecting, entry, graph, mayWrite, say, store } from "../state.js";
import { EdgeForm, EMPTY, NodeForm, writeNode } from "./forms.js";
import { ImportData } from "./import.js";
import { showWritten, undoNode, whyNotDrawn } from "./undo.js";
import { W } from "./words.js";

/** @param {{onClose: () => void}} props */
function NewNode({ onClose }) {
  const [draft, setDraft] = useState(EMPTY);
  const save = async () => {
    const { node } = await writeNode(null, draft);
    onClose();
    await showWritten(node.id);
    say(W.nodeCreated(labelOf(node)) + whyNotDrawn(graph.nodes.get(node.id)), false, undoNode(node));
  };
  return html`<${NodeForm} row=${null} title=${W.newNode} draft=${draft} onInput=${setDraft} onSave=${save} />`;
}

export function Entry() {
  const now = entry.value;
  // A late close must not close the next dialog.
  const close = () => {
    if (entry.value === now) entry.value = null;
  };
  // What was begun for one store must not be written to another.
  useEffect(() => close, [store.value, now]);
  if (!now) return null;
  if (now.kind === "import") return html`<${ImportData} key=${now.file} file=${now.file} onClose=${close} />`;
  if (!mayWrite.value) return null;
  if (now.kind === "node") return html`<${Dialog} key="node" title=${W.newNode} onClose=${close}><${NewNode} onClose=${close} /><//>`;
  return html`<${Dialog} key="edge" title=${W.newEdge} onClose=${close}><${EdgeForm} from=${now.from} to=${now.to} onClose=${close} /><//>`;
}

/** Open a dialog, or start to connect nodes. @param {string} what */
export function beginEntry(what) {
  if (what === "connect") connecting.value = true;
  else if (what === "import") entry.value = { kind: "import", file: null };
  else entry.value = what === "node" ? { kind: "node" } : { kind: "edge", from: "", to: "" };
}
