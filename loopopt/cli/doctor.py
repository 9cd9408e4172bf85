"""``loopopt doctor``: versions, what torch offers, and what would stop the loop."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass

import click

from loopopt.errors import LoopoptError, UnsupportedError

ENTRY_POINT_GROUP = "torch.backends"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        state: "ok", "limits" (works, with less) or "stops" (the loop cannot be closed).
        found: what was found.
        remedy: what to do; empty if all is well.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Say what would stop the loop here.

    And what to do about it: versions, what this torch offers, socket directory, network namespaces.

    Exit code 0 if the loop can run, 8 if something stops it.
    """
    checks = [*_versions(), _entry_point(), _autoload(), *_torch_features(), _directory(), _shaping()]
    stopped = any(check.state == "stops" for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not stopped, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks)
    return UnsupportedError.exit_code if stopped else 0


def _versions() -> list[Check]:
    python = platform.python_version()
    checks = [Check("loopopt", "ok", _version("loopopt") or "not installed"), Check("python", "ok", python)]
    torch = _version("torch")
    if torch is None:
        remedy = "install it in this environment: pip install 'loopopt[agent]'"
        checks.append(Check("torch", "stops", "not installed", remedy))
    else:
        checks.append(Check("torch", "ok", torch))
    if sys.platform != "linux":
        checks.append(Check("platform", "stops", sys.platform, "use Linux: the loop needs Unix sockets and /proc"))
    return checks


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _entry_point() -> Check:
    found = [e for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if e.name == "loopopt"]
    if found:
        return Check("agent entry point", "ok", found[0].value)
    remedy = "install loopopt with pip into the job's own environment (PYTHONPATH alone does not register it)"
    return Check("agent entry point", "stops", f"none in group {ENTRY_POINT_GROUP}", remedy)


def _autoload() -> Check:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        remedy = "unset it for jobs not started by `loopopt run` (which unsets it by itself)"
        return Check("autoload", "limits", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", remedy)
    return Check("autoload", "ok", "not switched off")


def _torch_features() -> list[Check]:
    """Ask torch in a process of its own: this one must stay small, and a broken torch must not break us."""
    if _version("torch") is None:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-m", "loopopt_agent.probe", "--json"],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        features = dict(answer["features"])
        reason = str(answer["reason"])
    except subprocess.TimeoutExpired:
        return [Check("torch features", "stops", "import torch takes over 180 s", "look at this torch installation")]
    except (IndexError, KeyError, TypeError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return [Check("torch features", "stops", f"probe failed: {last}", "see `python -m loopopt_agent.probe`")]
    # A missing feature stops the loop only if the agent itself says so (`reason`).
    checks = [
        Check(f"torch: {name}", "ok" if found == "ok" else "limits", str(found)) for name, found in features.items()
    ]
    if reason:
        remedy = "use a tested torch (see constraints.txt); with this one jobs are only observed"
        checks.append(Check("closed loop", "stops", reason, remedy))
    else:
        checks.append(Check("closed loop", "ok", "this torch has all it needs"))
    return checks


def _directory() -> Check:
    from loopopt.cli import jobs

    home = jobs.home()
    try:
        jobs.check_socket_path(home / ("x" * 24))
        jobs.make_directory(home)
        if not os.access(home, os.W_OK | os.X_OK):
            return Check("socket directory", "stops", f"{home}: not writable", "set LOOPOPT_HOME to a writable path")
    except LoopoptError as err:
        return Check("socket directory", "stops", str(err), "set LOOPOPT_HOME to a short, writable path")
    return Check("socket directory", "ok", str(home))


def _shaping() -> Check:
    from loopopt.cli import netns

    why_not = netns.why_not()
    if why_not:
        return Check("shaped loopback (demo)", "limits", why_not, "`loopopt demo` falls back to the plain loopback")
    return Check("shaped loopback (demo)", "ok", shutil.which("tc") or "tc")


def _print(checks: list[Check]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from loopopt.cli import screen

    marks = {"ok": "[green]ok[/]", "limits": "[yellow]limits[/]", "stops": "[red]stops[/]"}
    table = Table()
    for name in ("check", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for check in checks:
        table.add_row(escape(check.name), marks[check.state], escape(check.found), escape(check.remedy))
    console = screen.console()
    console.print(table)
    stopped = [check.name for check in checks if check.state == "stops"]
    console.print(f"The loop cannot run: {', '.join(stopped)}." if stopped else "The loop can run here.")
