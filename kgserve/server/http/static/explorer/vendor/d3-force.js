export * from "./d3-force.7e21996d2e.js";
