"""Command line interface. Each command imports its dependencies when it runs, which keeps startup and completion fast.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no server reachable, 130 interrupted.
"""
