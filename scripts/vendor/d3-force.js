export { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "d3-force";
