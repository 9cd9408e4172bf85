"""The daemon's end of the agent socket, driven step by step by a test. Real sockets, real messages."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import TypeVar

from loopopt import wire

M = TypeVar("M", bound=wire.Message)


class ScriptedDaemon:
    """Accepts agents in `job_dir`, keeps every message, sends what the test says to rank 0."""

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        self.messages: list[wire.Message] = []
        self._arrived: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self._rank0: socket.socket | None = None
        self._lines: list[socket.socket] = []
        path = job_dir / wire.SOCKET_NAME
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        os.chmod(path, 0o600)
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return
            self._lines.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            for raw in line.makefile("rb"):
                message = wire.decode(raw)
                if isinstance(message, wire.Hello):
                    line.sendall(wire.encode(wire.Welcome(pid=os.getpid(), loopopt="test")))
                    if message.rank == 0:
                        self._rank0 = line
                self.messages.append(message)
                self._arrived.put(message)
        except OSError:
            return

    def send(self, message: wire.Message) -> None:
        """To rank 0's agent, as soon as it is there."""
        deadline = time.monotonic() + 60
        while self._rank0 is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self._rank0 is not None, "rank 0 never said hello"
        self._rank0.sendall(wire.encode(message))

    def wait(self, kind: type[M], count: int = 1, timeout_s: float = 120.0) -> list[M]:
        """The next `count` messages of a kind (others pass by)."""
        found: list[M] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            try:
                message = self._arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{len(found)} of {count} {kind.__name__} after {timeout_s} s; last: {self.messages[-5:]}"
                ) from None
            if isinstance(message, kind):
                found.append(message)
        return found

    def close(self) -> None:
        """Hang up on everybody, as a killed daemon does."""
        self._server.close()
        for line in self._lines:
            # The reading thread holds the file open: only a shutdown ends the connection now.
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
