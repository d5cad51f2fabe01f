"""`kgserve` and `python` for shells, forked from a process that has imported what they need.

A command then takes a twentieth of a second of a core, not half a one. It is a process as any other: with the standard
streams, folder, environment and exit code that the shell gives it and sees. Signals do not reach it.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from runpy import run_module

from kgserve.cli.root import kgserve_root_command
from tests.cli.running import environment

TOP = Path(__file__).parents[2]
IMPORTED = ("kgserve.client", "kgserve.client.embedded", "mcp")
PROGRAM = """#!{python} -IS
import os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    parts = [os.path.basename(sys.argv[0]), os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:]]
    parts += [f"{{name}}={{value}}" for name, value in os.environ.items()]
    told = "\\0".join(parts).encode("utf-8", "surrogateescape")
    socket.send_fds(asked, [len(told).to_bytes(8, "little")], [0, 1, 2])
    asked.sendall(told)
    code = asked.recv(1)
sys.exit(code[0] if code else 255)
"""


@contextmanager
def ready_commands(folder: Path) -> Generator[Path]:
    """A folder with both programs, which work until the end of the block."""
    address = str(folder / "asked")
    for name in ("kgserve", "python"):
        (folder / name).write_text(PROGRAM.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    with closing(socket.socket(socket.AF_UNIX)) as asked:
        asked.bind(address)
        asked.listen(16)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.project.ready_commands", str(asked.fileno())],
            pass_fds=[asked.fileno()],
            cwd=TOP,
            env=environment(),
        )
    with process:
        try:
            yield folder
        finally:
            process.kill()


def main(descriptor: str) -> None:
    """Fork a command for each request."""
    for each in IMPORTED:
        import_module(each)
    kgserve_root_command.commands = dict(kgserve_root_command.commands)  # imports them
    gc.freeze()
    asked = socket.socket(fileno=int(descriptor))
    while True:
        asking, _address = asked.accept()
        if os.fork() == 0:
            asked.close()
            _guard(asking)
            return
        asking.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _guard(asking: socket.socket) -> None:
    """Fork the command and send its exit code to the client; the child process returns from here."""
    head, streams, _flags, _address = socket.recv_fds(asking, 8, 3)
    told = asking.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
    command = os.fork()
    if command == 0:
        asking.close()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        _run(*told.decode("utf-8", "surrogateescape").split("\0"))
        return
    for stream in streams:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with suppress(BrokenPipeError):
        asking.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def _run(name: str, folder: str, count: str, *rest: str) -> None:
    """Become the command: `kgserve` with arguments, or `python -c` with a text."""
    arguments, variables = rest[: int(count)], rest[int(count) :]
    os.chdir(folder)
    os.environ.clear()  # noqa: TID251 - it gets one of its own
    for each in variables:
        variable, _, value = each.partition("=")
        os.environ[variable] = value  # noqa: TID251 - as above
    if name == "kgserve":
        sys.argv = [name, *arguments]
        run_module("kgserve", run_name="__main__", alter_sys=True)
    else:
        option, text = arguments
        assert option == "-c"
        sys.argv = [option]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - what the page shows


if __name__ == "__main__":
    main(sys.argv[1])
