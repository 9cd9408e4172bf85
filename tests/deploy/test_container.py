"""The image file and the wheel it installs: what it copies is there, and its entry point serves a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from manifests import ROOT, one, pod_spec, written

from loopopt import ctl
from loopopt.errors import DaemonError

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"


def _instructions() -> list[tuple[str, str]]:
    """Instruction and argument, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", CONTAINERFILE.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def _arguments(instruction: str) -> list[str]:
    return [rest for word, rest in _instructions() if word == instruction]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the image file copies, and from nothing else, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "src"
    source.mkdir()
    for copied in _arguments("COPY"):
        if not copied.startswith("--from"):
            *names, target = copied.split()
            files = subprocess.run(
                ["git", "ls-files", "--cached", "--others", "--exclude-standard", *names],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            assert files, copied
            for name in files:
                assert target == "./" or name.startswith(f"{target}/")
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr[-3000:]
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a fresh virtual environment with the wheel in it; dependencies are those of the tests' own."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return home / "bin"


def _clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("LOOPOPT")}


def test_what_is_copied_is_there() -> None:
    """Every source of a COPY from the checkout, and the stage that another copies from."""
    stages = [rest.split(" AS ")[1] for rest in _arguments("FROM") if " AS " in rest]
    assert len(_arguments("FROM")) == len(stages) + 1 == 2
    for copied in _arguments("COPY"):
        if copied.startswith("--from="):
            assert copied.removeprefix("--from=").split()[0] in stages
        else:
            assert all((ROOT / name).exists() for name in copied.split()[:-1])


def test_the_image_is_not_roots() -> None:
    """A numeric user, so that runAsNonRoot can be checked, and the same as in the manifests."""
    (user,) = _arguments("USER")
    (job,) = written()["base/job.yaml"]
    context = pod_spec(job)["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert _instructions()[-1][0] == "CMD"


def test_the_wheel_holds_everything(wheel: Path) -> None:
    """Every file of both packages, not the modules alone, and the entry points that PyTorch and the shell look for."""
    tracked = subprocess.run(
        ["git", "ls-files", "loopopt", "agents/loopopt_agent"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [archive.read(n).decode() for n in names if n.endswith("entry_points.txt")]
    assert {name.removeprefix("agents/") for name in tracked} <= set(names)
    assert "loopopt = loopopt.cli.main:main" in entry_points
    assert "[torch.backends]" in entry_points


def test_entry_point_answers(installed: Path) -> None:
    """`docker run loopopt` and `docker run loopopt --version`."""
    (entry,) = _arguments("ENTRYPOINT")
    (default,) = _arguments("CMD")
    program = [str(installed / json.loads(entry)[0])]
    for arguments, expected in ((json.loads(default), "Usage: loopopt"), (["--version"], "loopopt, version")):
        said = subprocess.run([*program, *arguments], env=_clean(), capture_output=True, text=True, timeout=60)
        assert (said.returncode, said.stderr) == (0, "")
        assert said.stdout.startswith(expected)
    where = [str(installed / "python"), "-c", "import loopopt, loopopt_agent; print(loopopt.__file__)"]
    said = subprocess.run(where, env=_clean(), cwd="/", capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.startswith(str(installed.parent)), "the checkout's own package was run"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets."""
    with tempfile.TemporaryDirectory(prefix="lo-", dir="/tmp") as name:
        yield Path(name)


def test_the_sidecars_command_line_serves(installed: Path, short_folder: Path) -> None:
    """The arguments of the Kubernetes Job, with another folder and a free port: metrics come, SIGTERM ends it well."""
    (entry,) = _arguments("ENTRYPOINT")
    (sidecar,) = pod_spec(one(written()["base/job.yaml"], "Job"))["initContainers"]
    job_dir = short_folder / "train"
    arguments = [str(job_dir) if a == "/run/loopopt/train" else a for a in sidecar["args"]]
    arguments = ["metrics_port=0" if a.startswith("metrics_port=") else a for a in arguments]
    arguments = ["metrics_host=127.0.0.1" if a.startswith("metrics_host=") else a for a in arguments]
    command = [str(installed / json.loads(entry)[0]), *arguments]
    with subprocess.Popen(command, env=_clean(), stderr=subprocess.PIPE, text=True) as daemon:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    status = ctl.request(job_dir, "status")
                    break
                except DaemonError:
                    assert daemon.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            url = f"http://127.0.0.1:{status['metrics_port']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as page:
                assert b"loopopt_build_info" in page.read()
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
    assert job_dir.stat().st_mode & 0o777 == 0o700
