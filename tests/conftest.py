"""What all tests share: no setting of the person's own environment, and a short folder for sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, so that a failure is there again; LOOPOPT_TEST_RANDOM=1 looks for new ones.
settings.register_profile("steady", derandomize=True)
if os.environ.get("LOOPOPT_TEST_RANDOM") != "1":
    settings.load_profile("steady")

_OWN = ("LOOPOPT", "LOOPOPT_DIR", "LOOPOPT_JOB", "LOOPOPT_HOME", "RANK", "WORLD_SIZE", "TORCH_DEVICE_BACKEND_AUTOLOAD")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _OWN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def loopopt_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty LOOPOPT_HOME whose path leaves room for socket names (pytest's own folders may not)."""
    with tempfile.TemporaryDirectory(prefix="lo-") as folder:
        monkeypatch.setenv("LOOPOPT_HOME", folder)
        yield Path(folder)
