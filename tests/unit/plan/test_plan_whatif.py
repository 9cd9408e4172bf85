"""`loopopt plan simulate`, from files to what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from graphs_at_random import sharded, table

from loopopt.cli.main import cli
from loopopt.errors import UsageError
from loopopt.offline import tablefile
from loopopt.offline.tablefile import TableFile


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A graph and a table."""
    graph, durations = tmp_path / "graph.json", tmp_path / "table.json"
    graph.write_text(json.dumps(sharded(6).to_json()))
    tablefile.write(TableFile(table()), str(durations))
    return str(graph), str(durations)


def simulate(files: tuple[str, str], *options: str) -> str:
    done = CliRunner().invoke(
        cli,
        ["plan", "simulate", files[0], "--table", files[1], *options],
        standalone_mode=False,
        catch_exceptions=False,
    )
    return done.output


def test_json_has_both_schedules(files: tuple[str, str]) -> None:
    answer = json.loads(simulate(files, "--json"))
    own, best = answer["schedules"]
    assert (own["label"], best["label"]) == ("as it was", "best found")
    assert own["exposed_us"] == pytest.approx(18 * 250)
    assert best["step_us"] < own["step_us"]
    assert answer["collectives"] == 18
    assert answer["assumed"]["nodes"] == 0
    assert sum(row["us"] for row in best["exposed"]) == pytest.approx(best["exposed_us"])


def test_circumstances_and_memory_count(files: tuple[str, str]) -> None:
    def steps(*options: str) -> list[float]:
        return [s["step_us"] for s in json.loads(simulate(files, *options, "--json"))["schedules"]]

    assert steps("--bandwidth", "x0.5")[0] > steps()[0] > steps("--bandwidth", "2")[0]
    assert steps("--compute", "x2")[0] == pytest.approx(steps()[0] + 18 * 200)
    assert steps("--memory-gb", "0")[1] >= steps()[1]


def test_people_get_tables(files: tuple[str, str]) -> None:
    text = simulate(files)
    assert "best found" in text
    assert "still exposed" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "column"),
        (b"{}", "not of the expected form"),
        (b"[]", "not of the expected form"),
        (b"[" * 200_000, "recursion"),
        (b"\x1f\x8b\x08\x00\xff", "decode"),
    ],
)
def test_a_bad_graph_is_named(files: tuple[str, str], content: bytes, reason: str) -> None:
    Path(files[0]).write_bytes(content)
    with pytest.raises(UsageError, match=f"graph.json.*{reason}"):
        simulate(files)


def test_bad_factors_and_missing_files_are_usage_errors(files: tuple[str, str]) -> None:
    done = CliRunner().invoke(cli, ["plan", "simulate", files[0], "--table", files[1], "--bandwidth", "x0"])
    assert done.exit_code == 2
    assert "factor above 0" in done.output
    with pytest.raises(UsageError, match="nowhere"):
        simulate(("/nowhere.json", files[1]))
    with pytest.raises(UsageError, match="directory"):
        simulate((str(Path(files[0]).parent), files[1]))
