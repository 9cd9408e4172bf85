"""Start a real two-rank torchrun job for a test and read what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from loopopt import wire
from loopopt.plans import Knobs, Plan
from loopopt.timing import CollectiveCurve, Duration, TimingTable

SCRIPT = Path(__file__).with_name("script.py")


def curve(kind: str, slowness: float = 1.0) -> CollectiveCurve:
    """Transfer times of a link of about 190 MB/s, for groups of two."""
    times = (Duration(5, 600 * slowness, 10.0), Duration(5, 5600 * slowness, 10.0), Duration(5, 89000 * slowness, 10.0))
    return CollectiveCurve(kind, "", 2, (1 << 14, 1 << 20, 1 << 24), times)


PLAN = Plan(
    "schedule + bucket",
    Knobs(scheduling=True, collective_bucketing=True, pre_bucketing=False),
    TimingTable((curve("all_gather"), curve("all_reduce", 2), curve("reduce_scatter", 2)), {}),
)


@dataclass
class Job:
    """A running torchrun and what it prints."""

    process: subprocess.Popen[str]
    log: Path

    def finish(self, timeout_s: float = 180.0) -> tuple[int, list[dict[str, float]], str]:
        """Exit code, rank 0's step lines, and stderr."""
        _, err = self.process.communicate(timeout=timeout_s)
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return self.process.returncode, [json.loads(line) for line in lines], err


def start(
    tmp: Path,
    job_dir: Path | None,
    *arguments: str,
    torchrun: tuple[str, ...] = (),
    script: tuple[Path | str, ...] = (SCRIPT,),
    ranks: int = 2,
    **env: str,
) -> Job:
    """torchrun of a script; `job_dir` None leaves loopopt out of the environment altogether."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("LOOPOPT")}
    variables |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", "TORCHINDUCTOR_COMPILE_THREADS": "1", **env}
    if job_dir is not None:
        variables |= {wire.ENV_ENABLE: "1", wire.ENV_DIR: str(job_dir), wire.ENV_JOB: "test"}
    log = tmp / f"steps-{len(list(tmp.glob('steps-*')))}.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *torchrun]
    command += [*map(str, script), "--steps-log", str(log), *arguments]
    process = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return Job(process, log)


def losses(steps: list[dict[str, float]]) -> list[float]:
    """Losses by step, exact."""
    return [line["loss"] for line in steps]
