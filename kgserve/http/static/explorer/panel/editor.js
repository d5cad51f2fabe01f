// CodeMirror for statements of Cypher: loaded when the pane is opened. Until it has come, and if it does not, a plain field stands there.

/** @typedef {{text: () => string, set: (text: string) => void, focus: () => void, mark: (line: number, column: number) => void, destroy: () => void}} Editor */

/**
 * Within a shadow root the editor's styles are adopted sheets, which the page's policy allows.
 * @param {HTMLElement} host @param {{text: string, label: string, words: () => {label: string, type: string}[], run: () => void, change: (text: string) => void}} options
 * @returns {Promise<Editor>}
 */
export async function open(host, options) {
  const cm = await import("../vendor/codemirror.js");
  const { tags: t, EditorView } = cm;
  const colours = cm.HighlightStyle.define([
    { tag: [t.keyword, t.operatorKeyword], color: "var(--keyword)", fontWeight: "600" },
    { tag: [t.string, t.special(t.string)], color: "var(--string)" },
    { tag: [t.number, t.bool, t.atom], color: "var(--value)" },
    { tag: [t.variableName, t.propertyName, t.definition(t.variableName)], color: "var(--text)" },
    { tag: [t.comment], color: "var(--soft)" },
  ]);
  const theme = EditorView.theme({
    "&": { color: "var(--text)", backgroundColor: "var(--page)", fontSize: "14px", maxHeight: "12rem" },
    ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--text)", minHeight: "4.5em" },
    ".cm-cursor": { borderLeftColor: "var(--text)" },
    "&.cm-focused": { outline: "2px solid var(--link)" },
    ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--text)", border: "1px solid var(--line)" },
    ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--link)", color: "var(--page)" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--chosen)" },
  });
  const complete = (/** @type {any} */ context) => {
    const word = context.matchBefore(/[\w]+/);
    return word || context.explicit ? { from: word?.from ?? context.pos, options: options.words(), validFor: /^\w*$/ } : null;
  };
  const run = () => {
    options.run();
    return true;
  };
  const extensions = [
    cm.Prec.highest(cm.keymap.of([{ key: "Mod-Enter", run }])),
    cm.history(),
    cm.drawSelection(),
    cm.bracketMatching(),
    cm.StreamLanguage.define(cm.cypher),
    cm.syntaxHighlighting(colours),
    cm.autocompletion({ override: [complete], icons: false }),
    cm.keymap.of([...cm.completionKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
    EditorView.lineWrapping,
    EditorView.contentAttributes.of({ "aria-label": options.label }),
    EditorView.updateListener.of((/** @type {any} */ update) => update.docChanged && options.change(update.state.doc.toString())),
    theme,
  ];
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const view = new EditorView({ state: cm.EditorState.create({ doc: options.text, extensions }), parent: root, root });
  return {
    text: () => view.state.doc.toString(),
    set: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    focus: () => view.focus(),
    mark: (line, column) => {
      const at = view.state.doc.line(Math.min(Math.max(1, line), view.state.doc.lines));
      view.dispatch({ selection: { anchor: Math.min(at.to, at.from + Math.max(0, column - 1)) }, scrollIntoView: true });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}
