export * from "./preact.3281de9f37.js";
