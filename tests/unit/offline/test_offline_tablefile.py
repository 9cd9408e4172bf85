"""Tables as files: every form gives back the same table, and what was tampered with is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopopt.errors import UsageError
from loopopt.measurement import Coverage
from loopopt.offline import tablediff, tablefile
from loopopt.offline.inductor import profile
from loopopt.offline.tablefile import TableFile
from loopopt.timing import CollectiveCurve, Duration, Regime, TimingTable
from loopopt.traces import ProcessGroup

TABLE = TimingTable(
    collectives=(
        CollectiveCurve(
            "all_gather",
            "0",
            2,
            (1024, 1 << 20),
            (Duration(8, 20.25, 0.1), Duration(9, 120.0, 0.5)),
            dtype="float32",
            topology="local",
            regimes=(Regime(1024, 19.0, 0.0, 0.05, 8), Regime(65536, 15.0, 1e-4, 0.1, 9)),
        ),
        CollectiveCurve("all_gather", "0", 2, (512,), (Duration(1, 9.0, 0.0),), dtype="bfloat16"),
        CollectiveCurve("broadcast", 'a,"b"\n', 4, (8,), (Duration(1, 9.000000001, 0.0),)),
    ),
    compute={"aten::mm|[[2,2],[2,2]]|float32": Duration(10, 50.0, 0.2)},
    fingerprint={"world_size": "2", "device": "NVIDIA H200, 141 GB"},
    isolated={"aten::mm|[[2,2],[2,2]]|float32": Duration(3, 40.0, 0.1)},
    regions={"## Call CompiledFxGraph abc ##": Duration(3, 900.0, 1.0)},
)
FILE = TableFile(
    TABLE,
    "2026-12-01T06:00:00+00:00",
    ("a/rank0.json", "a/rank1.json"),
    Coverage(0.98, None, (("aten::cat", 12.5),)),
    (ProcessGroup("0", "default_pg", 2, (0, 1)),),
)


def test_a_table_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """Table, time, sources, coverage and groups."""
    tablefile.write(FILE, str(tmp_path / "t.json"))
    assert tablefile.read(str(tmp_path / "t.json")) == FILE
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize("form", ["bare", "answer", "csv", "profile"])
def test_every_form_holds_the_whole_table(form: str, tmp_path: Path) -> None:
    """Imported again, the digest is the same."""
    path = tmp_path / "x"
    if form == "csv":
        path.write_text(tablefile.csv_text(TABLE), newline="")
    else:
        content: dict[str, Any] = {
            "bare": TABLE.to_json(),
            "answer": {"digest": TABLE.digest, "table": TABLE.to_json()},
            "profile": profile(FILE).content,
        }[form]
        path.write_text(json.dumps(content, indent=2))
    assert tablefile.read(str(path)).table == TABLE


def test_a_changed_number_is_refused_until_the_digest_is_removed(tmp_path: Path) -> None:
    """In JSON and in CSV; the message tells both digests."""
    path = tmp_path / "t.csv"
    text = tablefile.csv_text(TABLE).replace("20.25", "21.25")
    path.write_text(text, newline="")
    with pytest.raises(UsageError, match=f"stated as {TABLE.digest}, but its content has"):
        tablefile.read(str(path))
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("digest")), newline="")
    assert tablefile.read(str(path)).table.collectives[0].durations[0].median_us == 21.25
    content = FILE.to_json()
    content["table"]["compute"]["aten::mm|[[2,2],[2,2]]|float32"][1] = 51.0
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="changed or damaged"):
        tablefile.read(str(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither JSON nor CSV"),
        ("[]", "expected a JSON object"),
        ("{", "not a timing table"),
        ('{"traceEvents": []}', "table build"),
        ('{"loopopt_table": 99, "table": {}}', "of form 99"),
        ('{"table": {"collectives": []}}', "not of the expected form"),
        ('{"table": []}', "not a JSON object"),
        ('{"collectives": [], "compute": {"a": [0, 1.0, 0.0]}, "fingerprint": {}}', "is no duration"),
        ('{"collectives": [], "compute": {"a": [1, -1.0, 0.0]}, "fingerprint": {}}', "is no duration"),
        ('{"collectives": [], "compute": {"a": [1, NaN, 0.0]}, "fingerprint": {}}', "is no duration"),
        ("section,kind\ncompute,x\n", "neither JSON nor CSV"),
        (",".join(tablefile.CSV_COLUMNS) + "\ncompute,,,,,,k,,one,1,1,\n", "line 2"),
    ],
)
def test_what_is_no_table_is_refused_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    """And with the file's name."""
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as caught:
        tablefile.read(str(path))
    assert str(path) in str(caught.value)


def test_sizes_must_rise(tmp_path: Path) -> None:
    """A curve is looked up by bisection."""
    content = TABLE.to_json()
    content["collectives"][0]["sizes"] = [1 << 20, 1024]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="rise"):
        tablefile.read(str(path))


def test_the_csv_is_one_duration_a_row() -> None:
    """For spreadsheets."""
    rows = list(csv.DictReader(tablefile.csv_text(TABLE).splitlines(keepends=True)))
    assert [r["message_bytes"] for r in rows if r["kind"] == "all_gather"] == ["1024", "1048576", "512"]
    assert [r["median_us"] for r in rows if r["section"] == "compute"] == ["50.0"]


def test_diff_tells_real_changes_from_noise() -> None:
    """A change within the two spreads is counted, not listed first."""
    curve = TABLE.collectives[0]
    slower = replace(curve, durations=(Duration(8, 20.3, 0.1), Duration(9, 240.0, 0.5)), regimes=())
    other = replace(
        TABLE, collectives=(slower,), compute={"new": Duration(1, 1.0, 0.0)}, fingerprint={"world_size": "4"}
    )
    found = tablediff.diff(replace(TABLE, isolated={}, regions={}), other)
    assert [(c.key.rpartition(", ")[2], c.beyond) for c in found.changes] == [
        ("1048576 bytes", True),
        ("1024 bytes", False),
    ]
    assert found.changes[0].ratio == 2.0
    assert ("compute", "new") in found.only_after
    assert {s for s, _ in found.only_before} == {"collectives", "compute"}
    assert found.fingerprint == {"world_size": ("2", "4"), "device": ("NVIDIA H200, 141 GB", "")}
    json.dumps(found.to_json(), allow_nan=False)


def test_diff_gives_bandwidth_and_latency_of_each_curve() -> None:
    """Of fitted lines where both tables have them, else of the line through the medians."""

    def straight(latency: float, gbps: float) -> TimingTable:
        sizes = (1000, 100_000, 1_000_000)
        durations = tuple(Duration(5, latency + s * 1e-3 / gbps, 0.1) for s in sizes)
        return TimingTable((CollectiveCurve("all_reduce", "0", 2, sizes, durations),))

    (curve,) = tablediff.diff(straight(10.0, 2.0), straight(30.0, 1.0)).curves
    assert curve.before is not None
    assert curve.after is not None
    assert curve.before.latency_us == pytest.approx(10.0, rel=1e-6)
    assert curve.before.gbps == pytest.approx(2.0, rel=1e-6)
    assert curve.after.latency_us == pytest.approx(30.0, rel=1e-6)
    assert curve.after.gbps == pytest.approx(1.0, rel=1e-6)
    fitted = tablediff.diff(TABLE, TABLE).curves[0]
    assert fitted.before == tablediff.Line(19.0, pytest.approx(10.0))
    assert tablediff.diff(TABLE, TABLE).changes == ()
