"""Reading a trace's first level only."""

from __future__ import annotations

import json
from pathlib import Path

from loopopt.offline.events import envelope, groups_of, pieces

INFO = {"rank": 3, "world_size": 4, "pg_config": [{"pg_name": "0", "pg_desc": "d", "pg_size": 2, "ranks": [3, 1]}, {}]}


def test_what_stands_before_or_behind_the_events_is_found(tmp_path: Path) -> None:
    """PyTorch wrote the time base behind the events once; an event may speak of it too."""
    events = [{"name": '"traceEvents": [', "args": {"baseTimeNanoseconds": 5}}]
    path = tmp_path / "t.json"
    names = ("traceEvents", "distributedInfo", "baseTimeNanoseconds")
    for keys in (names, names[::-1]):
        values = {"traceEvents": events, "distributedInfo": INFO, "baseTimeNanoseconds": 7}
        path.write_text(json.dumps({k: values[k] for k in keys}))
        assert envelope(str(path)).base_ns == 7
        (group,) = groups_of(str(path))
        assert (group.name, group.description, group.size, group.ranks) == ("0", "d", 2, (1, 3))
        assert [bytes(e["name"]) for piece in pieces(str(path)) for e in piece] == [b'"\\"traceEvents\\": ["']


def test_an_array_has_neither(tmp_path: Path) -> None:
    """The oldest form of a trace."""
    path = tmp_path / "t.json"
    path.write_text("[]")
    assert envelope(str(path)).base_ns is None
    assert groups_of(str(path)) == []
    assert list(pieces(str(path))) in ([], [[]])
