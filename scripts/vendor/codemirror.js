export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { bracketMatching, HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
export { cypher } from "@codemirror/legacy-modes/mode/cypher";
export { EditorState, Prec } from "@codemirror/state";
export { drawSelection, EditorView, keymap } from "@codemirror/view";
export { tags } from "@lezer/highlight";
