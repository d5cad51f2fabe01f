"""Access control: API keys, callers, permissions and the audit log."""
