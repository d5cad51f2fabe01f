export const forceCollide: any, forceLink: any, forceManyBody: any, forceSimulation: any, forceX: any, forceY: any;
