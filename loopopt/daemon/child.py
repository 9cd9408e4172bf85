"""Measuring in a process of its own: low priority, and whatever a trace does to it stays there.

    python -m loopopt.daemon.child < {"paths": [...], "fingerprint": {...}} > measurement as JSON

A file that cannot be used is left out and named in the notes; exit code 3 with one line on stderr if none is left.
"""

from __future__ import annotations

import json
import os
import sys

from loopopt.errors import LoopoptError, TraceError
from loopopt.measure import measure_window, measurement_to_json
from loopopt.parse import parse_trace


def main() -> int:
    """Read the request from stdin, write the measurement to stdout."""
    os.nice(19)
    request = json.load(sys.stdin)
    traces = []
    bad: list[str] = []
    for path in request["paths"]:
        try:
            traces.append(parse_trace(path))
        except TraceError as err:
            bad.append(str(err))
    try:
        if bad:
            # A window with a rank missing cannot tell transfer from waiting: drop it whole, say which file it was.
            raise LoopoptError("; ".join(bad))
        measured = measure_window(traces, fingerprint=request.get("fingerprint") or {})
    except LoopoptError as err:
        print(str(err).replace("\n", " "), file=sys.stderr)
        return 3
    json.dump(measurement_to_json(measured), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
