"""The demo model with and without the loop, interleaved in one run, as ratios.

    python -m tests.bench.loop [--rate 1500mbit] [--repeats 3] [--steps 14] [--only shaped|bound] [--json FILE]

Each repeat runs, one after another on the same shaped link: plain `torch.compile`; torch's overlap scheduler
with its default settings; and ours, a job under `loopopt run` from its first step, timed in its last steps, after
the loop has decided. The compute-bound variant does the same over the plain loopback with a model that has little to
gather and much to compute. A ratio is taken within a repeat, so that the machine's drift cancels; the median over
repeats is printed with the range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from loopopt import ctl
from loopopt.cli import netns
from loopopt.config import LoopConfig
from loopopt.errors import LoopoptError
from loopopt.store import Store
from loopopt.wire import ENV_DIR, ENV_ENABLE, STATE_NAME

_LAST_STEPS = 12
STOCK = Path(__file__).with_name("stock.py")


def torchrun(module: list[str], rate: str | None, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One two-rank job, over the shaped link if a rate is given."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *module]
    if rate is not None:
        command = netns.wrapped(command, rate)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LOOPOPT")}
    clean |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"} | env
    return subprocess.run(command, env=clean, text=True, capture_output=True, check=True)


def step_seconds(log: Path, skip: int) -> float:
    """Median step time of a demo log."""
    times = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
    return statistics.median(times[skip:])


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Median and range of the pairwise ratios."""
    values = sorted(a / b for a, b in zip(over, under, strict=True))
    return {"median": statistics.median(values), "low": values[0], "high": values[-1]}


def closed_loop(folder: Path, rate: str | None, arguments: list[str], name: str) -> dict[str, Any]:
    """The whole loop on the demo model by `loopopt run`; its summary, and the job's own latest step times.

    Returns:
        The summary, with "final_s" added: the median of the job's last steps, which it ran after the loop had
        decided.
    """
    summary, log = folder / f"{name}.json", folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "loopopt", "run", "--name", name, "--dir", str(folder / name)]
    command += ["--summary-json", str(summary), "--", sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "loopopt_agent.demo.train", *arguments, "--steps-log", str(log)]
    if rate is not None:
        command = netns.wrapped(command, rate)
    clean = {k: v for k, v in os.environ.items() if k not in (ENV_ENABLE, ENV_DIR)}
    subprocess.run(command, env=clean | {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}, check=True)
    found: dict[str, Any] = json.loads(summary.read_text())
    if found["phase"] != "watching":
        raise SystemExit(f"{name}: the loop was still in phase {found['phase']!r} when the job ended: give more steps")
    found["final_s"] = step_seconds(log, skip=-_LAST_STEPS)
    return found


def idle(folder: Path, rate: str, steps: int) -> dict[str, float]:
    """An agent and a daemon that only watch: what they cost.

    The baseline is made endless, so that neither a window nor a switch comes.
    """
    command = [sys.executable, "-m", "loopopt", "run", "--name", "idle", "--dir", str(folder / "idle")]
    command += ["--set", "baseline_steps=1000000", "--", sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "loopopt_agent.demo.train", "--steps", str(steps)]
    clean = {k: v for k, v in os.environ.items() if k not in (ENV_ENABLE, ENV_DIR)}
    run = subprocess.Popen(netns.wrapped(command, rate), env=clean | {"OMP_NUM_THREADS": "1"})
    last: dict[str, Any] = {}
    while run.poll() is None:
        time.sleep(0.5)
        with contextlib.suppress(LoopoptError, psutil.Error):
            last = ctl.request(folder / "idle", "status")
            last["rss"] = psutil.Process(last["pid"]).memory_info().rss
    per_rank_us = last["counters"]["agent_us"] / last["world_size"]
    return {
        "agent, share of a step": per_rank_us / (last["step"] * last["current_step_us"]),
        "daemon, resident MB": last["rss"] / 1e6,
    }


def window_cost(folder: Path, name: str, window_steps: int = 2) -> float:
    """Share of the job's time that sampling at the default interval costs, from a finished run's traced steps."""
    with Store.open(folder / name / STATE_NAME) as store:
        runs = [r for r in store.steps_since() if r.plan_id == "as-it-was" and r.rank == 0]
    plain = statistics.median(d for r in runs if r.kind == "plain" for d in r.durations_us)
    traced = statistics.median(d for r in runs if r.kind == "traced" for d in r.durations_us)
    return max(0.0, traced - plain) * window_steps / 1e6 / LoopConfig().sampling_interval_s


def main() -> int:
    """Print the ratios; write them as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1500mbit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--loop-steps", type=int, default=140, help="steps of a job with the loop beside it")
    parser.add_argument("--only", choices=["shaped", "bound"], help="one of the two variants, without the costs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    times: dict[str, list[float]] = {"plain": [], "stock": [], "bound": []}
    loops: list[dict[str, Any]] = []
    bound: list[dict[str, Any]] = []
    compute_bound = ["--batch", "96", "--width", "128"]
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name:
        folder = Path(name)

        def alone(key: str, mode: str, rate: str | None, extra: list[str]) -> None:
            log = folder / f"{key}-{len(times[key])}.jsonl"
            torchrun([str(STOCK), mode, "--steps-log", str(log), "--steps", str(args.steps), *extra], rate, {})
            times[key].append(step_seconds(log, skip=3))

        steps = ["--steps", str(args.loop_steps)]
        for repeat in range(args.repeats):
            if args.only != "bound":
                alone("plain", "plain", args.rate, [])
                alone("stock", "stock", args.rate, [])
                loops.append(closed_loop(folder, args.rate, steps, f"loop{repeat}"))
            if args.only != "shaped":
                alone("bound", "plain", None, compute_bound)
                bound.append(closed_loop(folder, None, [*steps, *compute_bound], f"bound{repeat}"))
        costs: dict[str, float] = {}
        if args.only is None:
            costs |= idle(folder, args.rate, 40)
            costs["sampling, share of the time"] = max(window_cost(folder, f"loop{r}") for r in range(args.repeats))
    result: dict[str, dict[str, float]] = {}
    if loops:
        ours = [loop["final_s"] for loop in loops]
        result |= {
            "step: ours / plain torch.compile": ratio(ours, times["plain"]),
            "step: ours / plain, inside one job": ratio(ours, [loop["before"]["step_us"] / 1e6 for loop in loops]),
            "step: ours / stock overlap scheduler": ratio(ours, times["stock"]),
            "exposed communication: ours / plain": ratio(
                [loop["after"]["exposed_us"] for loop in loops], [loop["before"]["exposed_us"] for loop in loops]
            ),
        }
    if bound:
        ours = [loop["final_s"] for loop in bound]
        result |= {
            "compute-bound step: ours / plain": ratio(ours, times["bound"]),
            "compute-bound step: ours / plain, inside one job": ratio(
                ours, [loop["before"]["step_us"] / 1e6 for loop in bound]
            ),
        }
    for what, value in result.items():
        print(f"{what:52} {value['median']:.3f}  ({value['low']:.3f} .. {value['high']:.3f})")
    for what, cost in costs.items():
        print(f"{what:52} {cost:.5f}" if cost < 1 else f"{what:52} {cost:.0f}")
    if args.json is not None:
        args.json.write_text(json.dumps(result | {"costs": costs}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
