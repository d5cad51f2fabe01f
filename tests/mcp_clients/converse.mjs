// A conversation with an MCP server through one of the official TypeScript clients.
//
//     node converse.mjs PLAN
//
// PLAN is JSON: {client: "sdk" | "client", era: "legacy" | "auto", url | command, headers, steps: [{tool, arguments}]}.
// What came of it is one line of JSON: {version, tools, results}. A client that fails exits with 1.

const plan = JSON.parse(process.argv[2]);
const about = { name: "kgserve-tests", version: "1" };

const load = {
  // Version 1 of the SDK knows the handshake only.
  sdk: async () => {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    return { client: new Client(about), StreamableHTTPClientTransport, StdioClientTransport };
  },
  client: async () => {
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
    const client = new Client(about, { versionNegotiation: { mode: plan.era } });
    return { client, StreamableHTTPClientTransport, StdioClientTransport };
  },
};

const { client, StreamableHTTPClientTransport, StdioClientTransport } = await load[plan.client]();
const transport = plan.url
  ? new StreamableHTTPClientTransport(new URL(plan.url), { requestInit: { headers: plan.headers } })
  : new StdioClientTransport({ command: plan.command[0], args: plan.command.slice(1), cwd: plan.folder });

let version = null;
const tell = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (agreed) => {
  version = agreed;
  tell?.(agreed);
};

await client.connect(transport);
const { tools } = await client.listTools();
const results = [];
for (const step of plan.steps) {
  // Both clients check the structured content against the output schema of a tool that they have listed.
  results.push(await client.callTool({ name: step.tool, arguments: step.arguments }));
}
await client.close();
version = client.getNegotiatedProtocolVersion?.() ?? version;
console.log(JSON.stringify({ version, tools, results }));
