"""A private network whose loopback is as slow as asked: communication then costs time, not processor."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from loopopt.errors import UsageError

_RATE = re.compile(r"[0-9]+(\.[0-9]+)?(kbit|mbit|gbit|kbps|mbps|gbps)", re.IGNORECASE)


def checked_rate(rate: str) -> str:
    """The rate, if `tc` understands it.

    Raises:
        UsageError: it does not.
    """
    if not _RATE.fullmatch(rate):
        raise UsageError(f"--rate {rate!r}: give a number and a unit as tc does, for example 1500mbit or 2gbit")
    return rate


def why_not() -> str:
    """Empty if a private, shaped loopback can be made here, else why not."""
    missing = [program for program in ("unshare", "ip", "tc", "sh") if find(program) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian packages util-linux, iproute2)"
    try:
        tried = subprocess.run(wrapped(["true"], "1gbit"), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        return f"unshare cannot be run: {err}"
    if tried.returncode == 0:
        return ""
    return (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]


def wrapped(command: list[str], rate: str) -> list[str]:
    """The command in a network namespace of its own, loopback limited to `rate`. Nothing is left behind.

    Both directions share the limit. Unix sockets are reached by path, in the namespace as outside.
    """
    namespace = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    script = (
        '"$1" link set lo up && "$2" qdisc add dev lo root tbf rate "$3" burst 1mb latency 200ms'
        ' && shift 3 && exec "$@"'
    )
    ip, tc = find("ip") or "ip", find("tc") or "tc"
    return [find("unshare") or "unshare", *namespace, "sh", "-c", script, "loopopt-shaped", ip, tc, rate, *command]


def find(program: str) -> str | None:
    """Where a program is; the system's folders count even if they are not on a user's PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
