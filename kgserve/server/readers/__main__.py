"""Entry point of the fork server of reader processes: `python -m kgserve.server.readers CHANNEL PAGE`."""

import sys

from kgserve.server.readers.reader_fork_server import serve_reader_forks

if __name__ == "__main__":
    serve_reader_forks(*sys.argv[1:])
