"""MCP server: tools, resources, prompts and notifications for agents."""
