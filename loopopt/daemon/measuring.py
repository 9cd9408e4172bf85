"""Asking the measuring process (`loopopt.daemon.child`) for a window's measurement."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopopt.errors import DaemonError


@dataclass(frozen=True, slots=True)
class Measured:
    """What came back.

    Attributes:
        measurement: as `loopopt.measure.measurement_to_json` writes it.
        summaries: the traced ranks for another node, as `loopopt.measure.sending` writes them; "" if not asked for.
    """

    measurement: dict[str, Any]
    summaries: str = ""


async def measure_in_child(
    paths: Sequence[str],
    fingerprint: Mapping[str, str],
    timeout_s: float,
    *,
    others: Sequence[str] = (),
    to_send: bool = False,
) -> Measured:
    """Measure a window in a process of its own.

    Args:
        paths: trace files of this node's ranks.
        fingerprint: hardware and software, kept in the table.
        timeout_s: how long it may take.
        others: summaries of other nodes' ranks.
        to_send: also give this node's summaries.

    Raises:
        DaemonError: it failed, or took too long; the message has its last words.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loopopt.daemon.child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    request = {"paths": list(paths), "fingerprint": dict(fingerprint), "others": list(others), "to_send": to_send}
    try:
        out, err = await asyncio.wait_for(child.communicate(json.dumps(request).encode()), timeout_s)
    except asyncio.TimeoutError:
        raise DaemonError(f"measuring took more than {timeout_s:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = err.decode(errors="replace").strip().splitlines()
        raise DaemonError(lines[-1] if lines else f"the measuring process ended with code {child.returncode}")
    answer = json.loads(out)
    if not isinstance(answer, dict) or not isinstance(answer.get("measurement"), dict):
        raise DaemonError("the measuring process answered something else than a measurement")
    return Measured(answer["measurement"], str(answer.get("summaries", "")))
