"""`loopopt analyze` and `loopopt diff` from the command line: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_analysis import analysis, run

import loopopt.offline
from loopopt.analysis import Analysis, Coverage, Selection
from loopopt.cli.analyze import numbers
from loopopt.cli.main import main
from loopopt.errors import TraceError, UsageError

WELL_COVERED = replace(run(), coverage=Coverage(0.99, 0.95))
DATA = Path(__file__).parents[2] / "data" / "traces"

Pretend = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Let the analysis of each path be a given one, or an error; returns what was asked for."""

    def install(**answers: Analysis | BaseException) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def analyze(patterns: Sequence[str], **options: Any) -> Analysis:
            asked.append({"patterns": tuple(patterns), **options})
            options["progress"](1, 2, "/t/[red]rank0.json")
            answer = answers[patterns[0]] if patterns[0] in answers else answers["any"]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(loopopt.offline, "analyze", analyze)
        return asked

    return install


def test_tables_go_to_stdout_and_nothing_else(pretend: Pretend, capsys: pytest.CaptureFixture[str]) -> None:
    """No bar where there is no terminal."""
    asked = pretend(any=analysis(WELL_COVERED))
    assert main(["analyze", "a", "b*"]) == 0
    out, err = capsys.readouterr()
    assert "per rank: compute" in out
    assert err == ""
    assert asked[0]["patterns"] == ("a", "b*")
    assert (asked[0]["selection"], asked[0]["executor"], asked[0]["workers"]) == (Selection(), "processes", None)


def test_the_selection_is_passed_on(pretend: Pretend) -> None:
    """Steps, groups, ranks, and how to read."""
    asked = pretend(any=analysis(WELL_COVERED))
    options = ["--steps", "3-5,8", "--group", "0", "--group", "mesh_dp", "--rank", "0,4-5", "--executor", "serial"]
    assert main(["analyze", "a", *options, "--workers", "3"]) == 0
    wanted = Selection(frozenset({3, 4, 5, 8}), frozenset({"0", "mesh_dp"}), frozenset({0, 4, 5}))
    assert asked[0]["selection"] == wanted
    assert (asked[0]["executor"], asked[0]["workers"]) == ("serial", 3)


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-3", "1,,2", "0-99999999", "٣", "1.5"])
def test_a_list_that_is_none_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Said with the option's name."""
    with pytest.raises(UsageError, match="--steps"):
        numbers("--steps", text)
    assert main(["analyze", "a", f"--rank={text}"]) == 2
    assert "--rank" in capsys.readouterr().err


def test_json_is_one_object_and_stderr_is_silent(pretend: Pretend, capsys: pytest.CaptureFixture[str]) -> None:
    """Notes, failed files and low coverage are in it."""
    pretend(any=analysis(failed=True))
    assert main(["analyze", "a", "--json"]) == 9
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"][0]["offset"] == 512
    assert err == ""


def test_files_that_failed_are_named_on_stderr_with_a_code_of_their_own(
    pretend: Pretend, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 would hide them; 3 would say that there is no result."""
    pretend(any=analysis(WELL_COVERED, failed=True))
    assert main(["analyze", "a"]) == 9
    out, err = capsys.readouterr()
    assert "per rank" in out
    assert "left out: /t/torn.json (byte 512)" in err


def test_no_usable_file_is_exit_code_3(pretend: Pretend, capsys: pytest.CaptureFixture[str]) -> None:
    """With the first one's reason."""
    pretend(any=TraceError("/t/x.json", "empty"))
    assert main(["analyze", "a"]) == 3
    assert capsys.readouterr() == ("", "loopopt: /t/x.json: empty\n")


@pytest.mark.parametrize(("how", "code", "complains"), [("off", 0, False), ("warn", 0, True), ("strict", 10, True)])
def test_low_coverage_is_what_one_makes_of_it(
    how: str, code: int, complains: bool, pretend: Pretend, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning by default."""
    pretend(any=analysis())
    assert main(["analyze", "a", "--coverage", how]) == code
    out, err = capsys.readouterr()
    assert ("less than 90% of one of them" in err) == complains
    assert ("The timing table knows" in out) == (how != "off")


def test_interrupting_is_exit_code_130(pretend: Pretend) -> None:
    """As a shell has it."""
    pretend(any=KeyboardInterrupt())
    assert main(["analyze", "a"]) == 130


def test_csv_and_html_are_written_beside_the_tables(
    pretend: Pretend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of tables, and a page."""
    pretend(any=analysis(WELL_COVERED))
    folder, page = tmp_path / "out", tmp_path / "report.html"
    assert main(["analyze", "a", "--csv", str(folder), "--html", str(page)]) == 0
    names = ["collectives.csv", "late.csv", "models.csv", "ranks.csv", "steps.csv", "worst.csv"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "report.html"]
    assert capsys.readouterr().err.count("written: ") == 2


def test_one_table_can_be_had_by_its_name(pretend: Pretend, tmp_path: Path) -> None:
    """`--csv steps.csv`."""
    pretend(any=analysis(WELL_COVERED))
    assert main(["analyze", "a", "--csv", str(tmp_path / "steps.csv")]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["steps.csv"]


@pytest.mark.parametrize(
    "options", [["--csv", "other.csv"], ["--html", "."], ["--csv", "no/such/out"], ["--html", "no/such/x.html"]]
)
def test_a_target_that_cannot_be_is_refused_before_anything_is_read(
    options: list[str], pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading may take minutes."""
    monkeypatch.chdir(tmp_path)
    asked = pretend(any=analysis())
    assert main(["analyze", "a", *options]) == 2
    assert asked == []


def test_help_and_wrong_usage_load_nothing_heavy() -> None:
    """plotly takes a second."""
    code = "from loopopt.cli.main import main; import sys; main(['analyze', '--help']); main(['diff', '--help'])\n"
    code += "print(sorted({'numpy', 'plotly', 'rich', 'msgspec'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_diff_shows_the_change_and_its_verdict(pretend: Pretend, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence at the end is the answer."""
    pretend(a=analysis(run("a", scales=(1.0,) * 4)), b=analysis(run("b", scales=(0.8, 0.81, 0.79, 0.8))))
    assert main(["diff", "a", "b"]) == 0
    assert "Step time 1.00 ms -> 800 us (-20.0 %): beyond noise." in capsys.readouterr().out


def test_diff_reads_what_analyze_saved(pretend: Pretend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the traces need not be kept."""
    asked = pretend(a=analysis(run("a", scales=(1.0,) * 4)), b=analysis(run("b", scales=(1.0,) * 4), failed=True))
    main(["analyze", "a", "--json"])
    saved = tmp_path / "before.json"
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["diff", str(saved), "b", "--json"]) == 9
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert (body["form"], body["before"], body["after"]) == ("loopopt-diff-1", "a", "b")
    assert body["steps"][0]["verdict"] == "within noise"
    assert "left out: /t/torn.json" in err
    assert len(asked) == 2
    assert main(["diff", str(saved), "b", "--steps", "1"]) == 2


def test_a_saved_file_that_is_damaged_is_named(
    pretend: Pretend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is not taken for a trace."""
    pretend(any=analysis())
    saved = tmp_path / "before.json"
    saved.write_text('{"form": "loopopt-analysis-1", "runs": [', encoding="utf-8")
    assert main(["diff", str(saved), "b"]) == 2
    assert str(saved) in capsys.readouterr().err


def test_of_several_runs_diff_does_not_guess(pretend: Pretend, capsys: pytest.CaptureFixture[str]) -> None:
    """They can be named by number or name."""
    pretend(any=analysis(run("morning"), run("evening")))
    assert main(["diff", "t", "t"]) == 2
    err = capsys.readouterr().err
    assert "holds 2 runs: 1 (morning), 2 (evening)" in err
    assert "--before-run" in err
    assert main(["diff", "t", "t", "--before-run", "1"]) == 2
    assert main(["diff", "t", "t", "--before-run", "1", "--after-run", "9"]) == 2
    assert main(["diff", "t", "t", "--before-run", "1", "--after-run", "evening"]) == 0
    assert "after:  evening" in capsys.readouterr().out
