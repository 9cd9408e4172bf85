"""Every file of the public collection either parses or is refused with a reason."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from loopopt.errors import TraceError
from loopopt.parse import parse_trace
from loopopt.traces import Category

pytestmark = pytest.mark.traces

REPOSITORY = Path(__file__).parents[3]


def collection() -> Path:
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "CATALOG.tsv").is_file():
        pytest.skip("the public trace collection is not here; set LOOPOPT_TEST_TRACES to its folder")
    return folder


def catalogue() -> list[tuple[Path, dict[str, str]]]:
    """Each file of the collection with its row in the catalogue."""
    folder = collection()
    with open(folder / "CATALOG.tsv", newline="") as file:
        return [(folder / row["path"], row) for row in csv.DictReader(file, delimiter="\t")]


def test_every_file_of_the_catalogue_parses_or_says_why_not() -> None:
    """Kernel counts and ranks are those of the catalogue; files no JSON reader takes are `TraceError`s."""
    rows = catalogue()
    assert len(rows) > 50
    refused = 0
    for path, row in rows:
        if not row["n_events"]:
            with pytest.raises(TraceError, match="not valid JSON"):
                parse_trace(path)
            refused += 1
            continue
        trace = parse_trace(path)
        assert int((trace.category == Category.KERNEL).sum()) == int(row["n_kernel"] or 0), row["path"]
        if row["rank"]:
            assert trace.rank == int(row["rank"]), row["path"]
        assert (trace.start_ns[1:] >= trace.start_ns[:-1]).all()
    assert refused < len(rows) // 10
