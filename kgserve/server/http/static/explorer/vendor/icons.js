export * from "./icons.262eefd898.js";
