"""Telemetry of a process: counters, latencies, traces and the slow-operation log."""
