"""The systemd units: accepted by systemd itself, hardened, and starting commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loopopt.cli.main import cli

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
INSTALLED = "/opt/loopopt/bin/loopopt"
SERVICES = ("loopopt@.service", "loopopt-refresh.service")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian package systemd)"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a program in them that exists here (systemd looks)."""
    for unit in UNITS.iterdir():
        text = unit.read_text()
        (tmp_path / unit.name).write_text(text.replace(INSTALLED, sys.executable))
    return tmp_path


def _commands(unit: str) -> list[str]:
    lines = re.findall(r"^ExecStart=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert len(lines) == 1
    return shlex.split(lines[0])


@needs_systemd
@pytest.mark.parametrize("unit", [*SERVICES, "loopopt-refresh.timer"])
def test_systemd_accepts_the_unit(units: Path, unit: str) -> None:
    """Not a word from `systemd-analyze verify`: unknown keys and missing programs are said there."""
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(units / unit)], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in said.stderr.splitlines() if "loopopt" in line]
    assert (said.returncode, ours) == (0, [])


@needs_systemd
def test_systemd_finds_what_is_wrong(units: Path) -> None:
    """The check above can fail: a program that is not there."""
    broken = units / "loopopt-refresh.service"
    broken.write_text(broken.read_text().replace(sys.executable, "/nowhere/loopopt"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True, timeout=60
    )
    assert "/nowhere/loopopt" in said.stderr


@needs_systemd
@pytest.mark.parametrize(("unit", "most"), [("loopopt@.service", 15), ("loopopt-refresh.service", 8)])
def test_the_unit_is_hardened(units: Path, unit: str, most: int) -> None:
    """By systemd's own score, in tenths: 0 is locked in, 100 is nothing done; a network service is rarely below 10."""
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", "--no-pager", str(units / unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unrecognized option" in said.stderr:
        pytest.skip("needs systemd 250 or newer (security --offline)")
    assert said.returncode == 0, said.stdout[-2000:]


@pytest.mark.parametrize("unit", SERVICES)
def test_the_unit_starts_a_command_that_there_is(unit: str) -> None:
    """Sub-command and options are those of this version's command line."""
    program, name, *arguments = _commands(unit)
    assert program == INSTALLED
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    options = {o for p in command.params for o in p.opts}
    assert {a for a in arguments if a.startswith("--")} <= options


@pytest.mark.parametrize("unit", SERVICES)
def test_the_end_of_the_unit_leaves_the_job_alone(unit: str) -> None:
    """They share a user: RemoveIPC would take the ranks' and data loaders' shared memory away."""
    assert re.findall(r"^RemoveIPC=(.*)$", (UNITS / unit).read_text(), re.MULTILINE) == ["no"]


def test_daemon_and_refresh_share_user_and_home() -> None:
    """Otherwise the refresh would find no job, or not be let in."""
    told = [
        {k: re.findall(rf"^{k}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE) for k in ("User", "Environment")}
        for unit in SERVICES
    ]
    assert told[0] == told[1]
    home = re.search(r"LOOPOPT_HOME=(\S+)", told[0]["Environment"][0])
    assert home is not None
    assert _commands("loopopt@.service")[3] == f"{home.group(1)}/%i"
