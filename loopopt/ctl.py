"""Asking the daemon of a job something: one JSON line there, one back, over `<job>/control.sock`."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from loopopt import wire
from loopopt.errors import DaemonError

_MOST_BYTES = 256 * 1024 * 1024


def request(job_dir: Path, cmd: str, timeout_s: float = 5.0, **args: Any) -> dict[str, Any]:
    """The daemon's answer.

    Args:
        job_dir: the job's directory.
        cmd: "status", "table", "plans", "windows", "refresh", "detach" (restore=bool) or "shutdown".
        timeout_s: seconds to wait for the whole answer.

    Raises:
        DaemonError: nobody listens there, no answer in time, or the daemon refused.
    """
    path = job_dir / wire.CONTROL_SOCKET_NAME
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(timeout_s)
            line.connect(str(path))
            line.sendall(json.dumps({"v": wire.VERSION, "cmd": cmd, **args}).encode() + b"\n")
            received = bytearray()
            while not received.endswith(b"\n"):
                data = line.recv(1 << 20)
                if not data or len(received) > _MOST_BYTES:
                    break
                received += data
    except (FileNotFoundError, ConnectionRefusedError):
        raise DaemonError(f"no daemon serves {job_dir}: start one with `loopopt attach` or `loopopt daemon`") from None
    except TimeoutError:
        raise DaemonError(f"the daemon of {job_dir} did not answer {cmd!r} within {timeout_s:g} s") from None
    except OSError as err:
        raise DaemonError(f"{path}: {err.strerror or err}") from err
    try:
        answer = json.loads(received)
    except ValueError as err:
        raise DaemonError(f"the daemon of {job_dir} broke off its answer to {cmd!r}") from err
    if not isinstance(answer, dict):
        raise DaemonError(f"the daemon of {job_dir} answered {cmd!r} with something else than an object")
    if "error" in answer:
        raise DaemonError(str(answer["error"]))
    return answer
