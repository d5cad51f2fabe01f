"""The command line. Each command imports what it needs when it runs, so that the shell answers at once.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no server answers, 130 interrupted.
"""
