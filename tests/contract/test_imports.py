"""What may import what, seen from outside and by import-linter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["loopopt.cli.main", "loopopt.wire", "loopopt.plans"])
def test_the_sidecar_does_not_load_torch(module: str) -> None:
    """torch costs more than a second and 200 MiB on every node."""
    loaded = _loaded_after(f"import {module}")
    assert module in loaded
    assert not loaded & {"torch", "loopopt_agent"}


@pytest.mark.parametrize("module", ["loopopt.wire", "loopopt.plans", "loopopt.timing", "loopopt.errors"])
def test_what_the_training_process_imports_is_standard_library_only(module: str) -> None:
    """The agent must not bring other versions of numpy or click into somebody's job."""
    loaded = _loaded_after(f"import {module}")
    assert not loaded & {"numpy", "click", "prometheus_client", "msgspec", "rich", "psutil", "plotly"}


def test_help_loads_no_command_that_was_not_asked_for() -> None:
    """`loopopt --help` should feel immediate."""
    loaded = _loaded_after("from loopopt.cli.main import main\nmain(['run', '--help'])")
    assert "loopopt.cli.run" in loaded
    assert not loaded & {"numpy", "rich", "psutil", "prometheus_client", "loopopt.cli.attach"}


def test_the_import_contracts_hold() -> None:
    """Layers, independent rooms, no torch in the sidecar, little of the sidecar in the agent."""
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed (extra `dev`)")
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}"}
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
