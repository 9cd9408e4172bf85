"""The agent's line to its daemon: a background thread that never holds up the training thread.

The daemon may die, restart or never come. What could not be sent while it was away is dropped, oldest
first; nothing is waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from loopopt import wire
from loopopt.errors import WireError

_RECONNECT_S = 1.0
_HEARTBEAT_S = 2.0
_LOOK_S = 0.5
_SEND_LIMIT_S = 5.0
_QUEUE = 10_000


class Client:
    """Connects, says hello, sends what is queued, hands on what arrives.

    Args:
        socket_path: the daemon's socket.
        hello: makes the first message of each connection.
        heartbeat: makes the regular sign of life.
        on_message: called in this thread with each message of the daemon.
        on_error: called in this thread with an unexpected exception; the thread then ends.
    """

    def __init__(
        self,
        socket_path: Path,
        hello: Callable[[], wire.Hello],
        heartbeat: Callable[[], wire.Heartbeat],
        on_message: Callable[[wire.Message], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._path = socket_path
        self._hello = hello
        self._heartbeat = heartbeat
        self._on_message = on_message
        self._on_error = on_error
        self._queue: deque[wire.Message] = deque(maxlen=_QUEUE)
        self._stop = threading.Event()
        self._idle = threading.Event()
        self.connected = False
        self._thread = threading.Thread(target=self._run, name="loopopt-client", daemon=True)

    def start(self) -> None:
        """Begin trying to connect."""
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        """Queue a message; returns at once."""
        self._idle.clear()
        self._queue.append(message)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued if the daemon listens, then end."""
        if self.connected and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._idle.wait(timeout_s)
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._serve()
                except (OSError, WireError):
                    pass  # the daemon went away or speaks another version: try again later, train on meanwhile
                finally:
                    self.connected = False
                self._stop.wait(_RECONNECT_S)
        except BaseException as err:  # noqa: BLE001  (the thread's door)
            self._on_error(err)

    def _serve(self) -> None:
        if not _is_ours(self._path):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_SEND_LIMIT_S)
            line.connect(str(self._path))
            line.sendall(wire.encode(self._hello()))
            self.connected = True
            pending = b""
            next_beat = time.monotonic() + _HEARTBEAT_S
            while not self._stop.is_set():
                while self._queue:
                    line.sendall(wire.encode(self._queue[0]))
                    self._queue.popleft()
                self._idle.set()
                if time.monotonic() >= next_beat:
                    line.sendall(wire.encode(self._heartbeat()))
                    next_beat = time.monotonic() + _HEARTBEAT_S
                readable, _, _ = select.select([line], [], [], _LOOK_S)
                if not readable:
                    continue
                data = line.recv(1 << 16)
                if not data:
                    return
                pending += data
                if len(pending) > wire.MAX_MESSAGE_BYTES:
                    raise WireError("the daemon sent a line without end")
                *lines, pending = pending.split(b"\n")
                for one in lines:
                    self._on_message(wire.decode(one))


def _is_ours(path: Path) -> bool:
    """Only talk to a socket of our own user: whoever owns it can make the job recompile."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return stat.S_ISSOCK(status.st_mode) and status.st_uid in (os.getuid(), 0)
    return False
