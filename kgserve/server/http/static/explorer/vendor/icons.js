export * from "./icons.742aaf1b2f.js";
