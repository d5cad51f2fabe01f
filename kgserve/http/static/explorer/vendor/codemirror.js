export * from "./codemirror.245a530020.js";
