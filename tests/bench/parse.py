"""Reading and measuring traces, next to HolisticTraceAnalysis (HTA) in one run, on one core.

    python -m tests.bench.parse [--hta-python .venv-hta/bin/python] [--repeats 3] [--no-big] [--json FILE] ...

Every figure comes from a process of its own, pinned to one core, with one thread in all libraries. Wall time runs from
after the imports (of both) to the result; the import times are printed apart. Peak memory is all of the process,
interpreter and imports included. HTA does `get_comm_comp_overlap` and `get_temporal_breakdown`; loopopt parses and does
`measure_window`, which includes both and the matching over ranks. The two take turns, so that the machine's drift hits
both; a ratio is taken within a repeat, and the median over the repeats is printed with the range.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20
REPOSITORY = Path(__file__).parents[2]
TARGETS = {"speedup": 15.0, "memory": 3.0, "mb_per_s": 150.0, "big_mb": 700.0}

# ---------------------------------------------------------------- in the measured process


def worker(tool: str, files: Sequence[str]) -> dict[str, float]:
    """Analyse files with one tool; seconds and bytes."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begin = time.perf_counter()
    analyse = {"loopopt": _loopopt, "hta": _hta, "generate": _generate}[tool]()
    ready, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        extra = analyse(files)
    return {
        "import_s": ready - begin,
        "wall_s": time.perf_counter() - ready,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        **extra,
    }


Analyse = Callable[[Sequence[str]], dict[str, float]]


def _loopopt() -> Analyse:
    from loopopt.measure import measure_window
    from loopopt.parse import parse_trace

    def analyse(files: Sequence[str]) -> dict[str, float]:
        begin = time.perf_counter()
        traces = [parse_trace(file, max_bytes=16 << 30) for file in files]
        parsed = time.perf_counter()
        found = measure_window(traces)
        return {
            "parse_s": parsed - begin,
            "rows": sum(map(len, traces)),
            "exposed_us": sum(rank.total.exposed_us for rank in found.ranks),
        }

    return analyse


def _hta() -> Analyse:
    import logging

    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.WARNING)

    def analyse(files: Sequence[str]) -> dict[str, float]:
        # What `TraceAnalysis(...)` does, but in this process alone.
        analysis = TraceAnalysis.__new__(TraceAnalysis)
        analysis.t = Trace(dict(enumerate(files)), "")
        analysis.t.load_traces(True, use_multiprocessing=False, use_memory_profiling=False)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_temporal_breakdown(visualize=False)
        return {"overlap_percent": float(overlap.iloc[:, 1].mean())}

    return analyse


def _generate() -> Analyse:
    from tests import tracegen

    def analyse(arguments: Sequence[str]) -> dict[str, float]:
        asked = json.loads(arguments[0])
        kind = asked.pop("kind")
        truth = tracegen.write_big(**asked) if kind == "big" else tracegen.write_job(**asked)
        return {"events": sum(rank.events for rank in truth.ranks.values())}

    return analyse


# ---------------------------------------------------------------- around it


def measured(python: str, tool: str, files: Sequence[str | Path]) -> dict[str, float]:
    """One run of `worker` in a process of its own."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    path = {"PYTHONPATH": str(REPOSITORY)} if tool != "hta" else {}
    done = subprocess.run(
        [python, str(Path(__file__).resolve()), "--worker", tool, *map(str, files)],
        env=os.environ | threads | path,
        text=True,
        capture_output=True,
    )
    if done.returncode:
        raise RuntimeError(f"{tool} failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def text_bytes(files: Sequence[Path]) -> int:
    """Uncompressed size; reading them also brings them into the page cache."""
    total = 0
    for path in files:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while part := file.read(MIB):
                total += len(part)
    return total


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def shown(value: dict[str, float], unit: str = "", digits: int = 1) -> str:
    return f"{value['median']:.{digits}f}{unit} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"


def compare(name: str, files: Sequence[Path], hta: str | None, repeats: int) -> dict[str, Any]:
    """Both tools in turn on the same files."""
    size = text_bytes(files)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    problem = None if hta else "not installed"
    for _ in range(repeats):
        ours.append(measured(sys.executable, "loopopt", files))
        if hta and not problem:
            try:
                theirs.append(measured(hta, "hta", files))
            except RuntimeError as err:
                problem = str(err)
    result: dict[str, Any] = {
        "files": len(files),
        "text_mb": size / 1e6,
        "loopopt": ours,
        "hta": theirs,
        "mb_per_s": spread([size / 1e6 / one["wall_s"] for one in ours]),
        "peak_mb": spread([one["peak_mb"] for one in ours]),
    }
    print(f"{name}: {len(files)} files, {size / 1e6:.1f} MB of JSON")
    print(
        f"  loopopt  {shown(spread([o['wall_s'] for o in ours]), ' s', 3)}, {shown(result['mb_per_s'], ' MB/s', 0)}, "
        f"peak {shown(result['peak_mb'], ' MB', 0)}, import {statistics.median(o['import_s'] for o in ours):.2f} s"
    )
    if problem:
        print(f"  HTA      {problem}")
        result["hta_problem"] = problem
        return result
    result["speedup"] = spread([b["wall_s"] / a["wall_s"] for a, b in zip(ours, theirs, strict=True)])
    result["memory"] = spread([b["peak_mb"] / a["peak_mb"] for a, b in zip(ours, theirs, strict=True)])
    print(
        f"  HTA      {shown(spread([o['wall_s'] for o in theirs]), ' s', 3)}, "
        f"peak {shown(spread([o['peak_mb'] for o in theirs]), ' MB', 0)}, "
        f"import {statistics.median(o['import_s'] for o in theirs):.2f} s"
    )
    print(f"  HTA / loopopt: time {shown(result['speedup'], 'x')}, peak memory {shown(result['memory'], 'x')}")
    return result


def fit(what: str, xs: Sequence[float], ys: Sequence[float]) -> dict[str, float]:
    """How the cost (seconds) grows: a line, and the exponent of a power."""
    line = statistics.linear_regression(xs, ys)
    power = statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys])
    r2 = statistics.correlation(xs, ys) ** 2
    print(f"cost by {what}: " + ", ".join(f"{x:.0f}: {y:.3f} s" for x, y in zip(xs, ys, strict=True)))
    print(
        f"  line: {line.slope * 1e6:.3f} us each + {line.intercept:.3f} s, R^2 {r2:.5f}; grows with the power "
        f"{power.slope:.3f}"
    )
    return {
        "slope_us": line.slope * 1e6,
        "intercept_s": line.intercept,
        "r2": r2,
        "exponent": power.slope,
        "xs": list(xs),
        "ys": list(ys),
    }  # type: ignore[dict-item]


def generated(**arguments: Any) -> int:
    """Write traces in another process, so that this one stays small; the number of events."""
    return int(measured(sys.executable, "generate", [json.dumps(arguments)])["events"])


def best(files: Sequence[Path], repeats: int) -> float:
    """CPU seconds to parse and measure; the least of the repeats, as others may be at work on the machine."""
    return min(measured(sys.executable, "loopopt", files)["cpu_s"] for _ in range(repeats))


def by_events(folder: Path, sizes_mb: Sequence[int], repeats: int) -> dict[str, float]:
    events, seconds = [], []
    for size in sizes_mb:
        path = folder / f"events{size}.json"
        events.append(float(generated(kind="big", path=str(path), target_bytes=size * 10**6)))
        seconds.append(best([path], repeats))
        path.unlink()
    return fit("events of one trace", events, seconds)


def by_ranks(folder: Path, counts: Sequence[int], repeats: int) -> dict[str, float]:
    seconds = []
    for count in counts:
        where = folder / f"ranks{count}"
        generated(kind="job", folder=str(where), ranks=count, steps=3, layers=4, mesh=[count // 4, 4])
        seconds.append(best(sorted(where.iterdir()), repeats))
    return fit("ranks", list(map(float, counts)), seconds)


def public_sets(limit: int) -> Iterator[tuple[str, list[Path]]]:
    """Sets of the public collection, if it is here."""
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "EXPECTED.json").is_file():
        return
    sets = json.loads((folder / "EXPECTED.json").read_text())["sets"]
    for name, one in list(sets.items())[:limit]:
        yield name, [folder / path for _, path in sorted(one["files"].items(), key=lambda item: int(item[0]))]


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    hta = options.hta_python if options.hta_python and Path(options.hta_python).exists() else None
    result: dict[str, Any] = {"targets": TARGETS, "sets": {}, "python": sys.version.split()[0]}
    for name, python in (("generated", False), ("generated, with Python stacks", True)):
        where = folder / f"set{int(python)}"
        events_per_rank = options.rank_mb * 10**6 / (900 if python else 800)
        steps = max(1, round(events_per_rank / (12 * 30 * (7 if python else 5))))
        generated(
            kind="job",
            folder=str(where),
            ranks=4,
            steps=steps,
            layers=12,
            kernels=12,
            python=python,
            seed=1,
            mesh=[2, 2],
        )
        files = sorted(where.iterdir())
        result["sets"][name] = compare(name, files, hta, options.repeats)
    for name, files in public_sets(options.public):
        result["sets"][name] = compare(name, files, hta, options.repeats)
    result["by_events"] = by_events(folder, options.sizes, options.repeats)
    result["by_ranks"] = by_ranks(folder, options.ranks, options.repeats)
    if options.big:
        path = folder / "big.json"
        generated(kind="big", path=str(path), target_bytes=options.big_mb * 10**6)
        size = path.stat().st_size / 1e6
        result["big"] = {"text_mb": size, **measured(sys.executable, "loopopt", [path])}
        path.unlink()
        big = result["big"]
        print(
            f"one trace of {size:.0f} MB, {big['rows']:.0f} rows: {big['wall_s']:.1f} s, "
            f"{size / big['wall_s']:.0f} MB/s, peak {big['peak_mb']:.0f} MB"
        )
    return result


def verdicts(result: dict[str, Any]) -> list[str]:
    """Each target with what was reached, on the set that did worst."""
    sets = result["sets"].items()
    lines = []
    for key, label in (("speedup", "times as fast as HTA"), ("memory", "times less peak memory than HTA")):
        worst = min(((one[key]["median"], name) for name, one in sets if key in one), default=None)
        if worst:
            met = "met" if worst[0] >= TARGETS[key] else "NOT met"
            lines.append(f"{label}: at least {worst[0]:.1f} ({worst[1]}); target {TARGETS[key]:.0f}: {met}")
    # The small public files are mostly start-up cost; speed is told from sets of 20 MB and more.
    rate = min(((one["mb_per_s"]["median"], name) for name, one in sets if one["text_mb"] >= 20), default=None)
    if rate:
        met = "met" if rate[0] >= TARGETS["mb_per_s"] else "NOT met"
        lines.append(f"MB/s of parse and measure: at least {rate[0]:.0f} ({rate[1]}); target 150: {met}")
    if "big" in result:
        met = "met" if result["big"]["peak_mb"] <= TARGETS["big_mb"] else "NOT met"
        lines.append(f"peak of the big trace: {result['big']['peak_mb']:.0f} MB; target 700: {met}")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2], sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--hta-python", help="Python of an environment with HolisticTraceAnalysis; without it, only ours"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank-mb", type=int, default=60, help="size of a generated rank's file")
    parser.add_argument("--public", type=int, default=2, help="how many sets of the public collection")
    parser.add_argument("--sizes", type=int, nargs="+", default=[25, 50, 100, 200], help="MB, cost by events")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64, 128], help="cost by ranks")
    parser.add_argument("--big", action=argparse.BooleanOptionalAction, default=True, help="one huge trace")
    parser.add_argument("--big-mb", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="where the traces go (a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = run(options, Path(folder))
    result["verdicts"] = verdicts(result)
    print("\n".join(result["verdicts"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
