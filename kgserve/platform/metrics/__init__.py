"""What a process can say about itself: counters, latencies, traces, and the line about whatever was slow."""
