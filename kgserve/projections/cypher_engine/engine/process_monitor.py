"""Life, processor time and memory of an engine process, which is no child of the server.

Linux has a handle of a process (pidfd) and figures in /proc. On macOS, which has neither, the control channel closes
when the process ends, and `ps` has the figures.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from pathlib import Path

from typing_extensions import override

_EXIT_POLL_SECONDS = 0.005
_PS_TIMEOUT_SECONDS = 5
_SECONDS_OF_PS_FIELDS = (1, 60, 3_600, 86_400)


class ProcessMonitor(ABC):
    """Monitor of one process. Ids are reused, so it identifies the process by more than its id."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether the process has ended for any reason."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process if it runs."""

    @abstractmethod
    def await_end(self, seconds: float) -> None:
        """Wait up to ``seconds`` until the system has released the process's resources, including file locks."""

    @abstractmethod
    def close(self) -> None:
        """Release the monitor. Later kills have no effect."""

    @abstractmethod
    def thread_states(self) -> frozenset[str]:
        """Return the states of its threads as Linux names them; empty after it has ended."""

    @abstractmethod
    def cpu_seconds(self) -> float:
        """Return the processor time used; 0 after it has ended."""

    @abstractmethod
    def private_memory_bytes(self) -> int:
        """Return its private memory in bytes; 0 after it has ended."""


def open_process_monitor(number: int, control: Connection) -> ProcessMonitor:
    """Return the monitor of process ``number``, which holds the other end of ``control`` while it runs.

    Raises ProcessLookupError if it has ended.
    """
    if hasattr(os, "pidfd_open") and os.path.exists("/proc/self/stat"):  # noqa: PTH110 - a file of the system
        return LinuxProcessMonitor(number)
    return PortableProcessMonitor(number, control)


class LinuxProcessMonitor(ProcessMonitor):
    """Monitor by pidfd and /proc."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._pidfd: int | None = os.pidfd_open(number)

    @override
    def has_ended(self) -> bool:
        return self._pidfd is not None and self._poll(0)

    @override
    def kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    @override
    def await_end(self, seconds: float) -> None:
        if self._pidfd is not None:
            self._poll(seconds)

    @override
    def close(self) -> None:
        # The process id may be reused; without the handle, no later kill hits another process.
        handle, self._pidfd = self._pidfd, None
        if handle is not None:
            os.close(handle)

    @override
    def thread_states(self) -> frozenset[str]:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{self._number}/task").iterdir()
            return frozenset(fields[0] for fields in map(_read_stat, tasks) if fields)
        return frozenset()

    @override
    def cpu_seconds(self) -> float:
        fields = _read_stat(Path(f"/proc/{self._number}"))
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    @override
    def private_memory_bytes(self) -> int:
        """Return dirty and swapped pages, without pages shared with the fork server."""
        folder = Path(f"/proc/{self._number}")
        try:
            with contextlib.suppress(FileNotFoundError):
                lines = (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()
                return 1024 * sum(
                    int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:"))
                )
            # Kernels without smaps_rollup.
            pages = (folder / "statm").read_text(encoding="ascii").split()
            return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    def _poll(self, seconds: float) -> bool:
        ended = select.poll()
        ended.register(self._pidfd or 0, select.POLLIN)
        return bool(ended.poll(1000 * seconds))


class PortableProcessMonitor(ProcessMonitor):
    """Monitor by the control channel, whose other end only this process holds, and by `ps`."""

    def __init__(self, number: int, control: Connection) -> None:
        self._number = number
        self._control: Connection | None = control
        os.kill(number, 0)

    @override
    def has_ended(self) -> bool:
        return self._is_hung_up(0)

    @override
    def kill(self) -> None:
        if self._control is not None and not self._is_hung_up(0):
            with contextlib.suppress(OSError):
                os.kill(self._number, signal.SIGKILL)

    @override
    def await_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        if self._is_hung_up(seconds):
            with contextlib.suppress(OSError):
                while time.monotonic() < end:
                    os.kill(self._number, 0)
                    time.sleep(_EXIT_POLL_SECONDS)

    @override
    def close(self) -> None:
        self._control = None

    @override
    def thread_states(self) -> frozenset[str]:
        # macOS calls a wait for the disk U.
        return frozenset(self._ps("state")[:1].replace("U", "D"))

    @override
    def cpu_seconds(self) -> float:
        fields = reversed(re.findall(r"[\d.]+", self._ps("time")))
        return sum(float(field) * unit for field, unit in zip(fields, _SECONDS_OF_PS_FIELDS, strict=False))

    @override
    def private_memory_bytes(self) -> int:
        """Return resident memory, with pages shared with the fork server: `ps` knows no other figure."""
        return 1024 * int(self._ps("rss") or 0)

    def _is_hung_up(self, seconds: float) -> bool:
        if self._control is None or self._control.closed:
            return True
        ended = select.poll()
        ended.register(self._control.fileno(), 0)
        return bool(ended.poll(1000 * seconds))

    def _ps(self, field: str) -> str:
        """Return what `ps` says of the process; "" after it has ended."""
        command = ["/bin/ps", "-o", f"{field}=", "-p", str(self._number)]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=_PS_TIMEOUT_SECONDS
        )
        return done.stdout.strip()


def _read_stat(folder: Path) -> list[str]:
    """Return the fields of a process's or thread's stat file from its state on; empty after it has ended."""
    with contextlib.suppress(OSError):
        return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return []
