export const autocompletion: any, completionKeymap: any, defaultKeymap: any, history: any, historyKeymap: any;
export const bracketMatching: any, HighlightStyle: any, StreamLanguage: any, syntaxHighlighting: any, cypher: any;
export const EditorState: any, Prec: any, drawSelection: any, EditorView: any, keymap: any, tags: any;
