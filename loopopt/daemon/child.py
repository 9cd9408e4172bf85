"""Measuring in a process of its own: low priority, and whatever a trace does to it stays there.

    python -m loopopt.daemon.child < {"paths": [...], "fingerprint": {...}, "others": [...], "to_send": false}
        > {"measurement": {...}, "summaries": "..."}

`others` are summaries that other nodes' measuring processes have sent; `to_send` asks for this node's.

A file that cannot be used is left out and named in the notes; exit code 3 with one line on stderr if none is left.
"""

from __future__ import annotations

import json
import os
import sys

from loopopt.errors import LoopoptError, TraceError
from loopopt.measure import measurement_to_json
from loopopt.measure.merge import merge_ranks
from loopopt.measure.sending import summaries_from_text, summaries_to_text
from loopopt.measure.window import summarize_window
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
        own = summarize_window(traces)
        others = [summary for text in request.get("others") or () for summary in summaries_from_text(text)]
        measured = merge_ranks([*own, *others], fingerprint=request.get("fingerprint") or {}).measurement
    except LoopoptError as err:
        print(str(err).replace("\n", " "), file=sys.stderr)
        return 3
    answer: dict[str, object] = {"measurement": measurement_to_json(measured)}
    if request.get("to_send"):
        answer["summaries"] = summaries_to_text(own)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
