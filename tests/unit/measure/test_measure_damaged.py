"""A damaged trace is either refused by the parser or measured; nothing else can happen."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopopt.errors import TraceError
from loopopt.measure import measure_window, measurement_from_json, measurement_to_json
from loopopt.parse import parse_trace

DATA = Path(__file__).parents[2] / "data" / "traces" / "gloo_2ranks"
EVENTS: list[dict[str, Any]] = [
    e
    for e in json.loads(gzip.decompress((DATA / "rank0.pt.trace.json.gz").read_bytes()))["traceEvents"]
    if e.get("ph") == "X"
]
HOSTILE = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-5, 2**65), st.lists(st.integers(-1, 2**40), max_size=3)), max_size=4),
    st.builds(dict),
)
FIELDS = ["ts", "dur", "name", "cat", "tid", "pid", "args"]
ARGUMENTS = ["Input Dims", "Input type", "Concrete Inputs", "External id", "Group size", "Seq", "Collective name",
             "In msg nelems", "Process Group Ranks", "dtype"]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_hostile_fields_are_refused_or_measured(data: st.DataObject) -> None:
    """Any field of any event replaced by anything: a `TraceError`, or a measurement that survives JSON."""
    events = [dict(e, args=dict(e.get("args", {}))) for e in EVENTS[:: data.draw(st.integers(1, 7))]]
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(events))
        value = data.draw(HOSTILE)
        if data.draw(st.booleans()):
            event[data.draw(st.sampled_from(FIELDS))] = value
        elif isinstance(event["args"], dict):
            event["args"][data.draw(st.sampled_from(ARGUMENTS))] = value
    info = data.draw(st.sampled_from([{}, {"rank": 0, "world_size": 2, "backend": "gloo"}, {"pg_config": [{}]}]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        try:
            trace = parse_trace(path)
        except TraceError:
            return
    found = measure_window([trace, parse_trace(DATA / "rank1.pt.trace.json.gz")])
    for breakdown in (found.ranks[0].total, *found.ranks[0].steps):
        parts = breakdown.compute_us + breakdown.exposed_us + breakdown.exposed_memcpy_us + breakdown.idle_us
        # A hostile time makes spans of decades, where a float64 of microseconds has steps of some nanoseconds.
        assert parts == pytest.approx(breakdown.span_us, rel=2e-15, abs=1e-6)
    assert measurement_from_json(json.loads(json.dumps(measurement_to_json(found)))) == found
