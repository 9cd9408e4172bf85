"""Traces of a run laid out for other tools, and HolisticTraceAnalysis' numbers beside ours.

Each rank gets one file in a folder of its own: a link where the tool reads the file as it is, else a copy in a form
it reads. The traces themselves stay as they are.

    HTA            one folder; each file gzip or plain JSON, an object, with `"rank": 3` (and that space) before any
                   other text of that kind. Files that it finds no rank in are all rank 0 to it, and of two files of
                   one rank it keeps the last.
    TensorBoard    logdir/<run>/<host>_<rank>.pt.trace.json[.gz], the same content
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loopopt.analysis import RunAnalysis, TraceFile
from loopopt.errors import LoopoptError, UnsupportedError, UsageError
from loopopt.measure import naming
from loopopt.measure.activity import find_activity, rows_named
from loopopt.measure.intervals import join
from loopopt.offline.events import PIECE, envelope, pieces
from loopopt.parse import parse_trace
from loopopt.parse.reading import open_text
from loopopt.traces import NO_ID, Category, RankTrace

_ENDINGS = {b"\x1f\x8b": ".json.gz", b"\x28\xb5": ""}
_RANK = re.compile(rb'"rank":\s+(\d+)')
_ENCODER = msgspec.json.Encoder()
# How HTA 0.5.0 sorts kernels and finds steps.
_HTA_COMMUNICATION = re.compile(r"nccl.*Kernel")
_HTA_NOTHING = re.compile(r".*(Memcpy|Sync)|Memset")
_HTA_STEP = re.compile(r"ProfilerStep\s*#\s*\d+")

_HTA_SCRIPT = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
overlap = analysis.get_comm_comp_overlap(visualize=False)
parts = analysis.get_temporal_breakdown(visualize=False)
found = {int(r): {"overlap_percent": float(v)} for r, v in zip(overlap["rank"], overlap["comp_comm_overlap_pctg"])}
for row in parts.to_dict("records"):
    found.setdefault(int(row["rank"]), {}).update(
        span_us=float(row["kernel_time(us)"]),
        compute_us=float(row["compute_time(us)"]),
        other_us=float(row["non_compute_time(us)"]),
        idle_us=float(row["idle_time(us)"]),
    )
with open(sys.argv[2], "w") as out:
    json.dump(found, out)
"""


@dataclass(frozen=True, slots=True)
class Handed:
    """One rank's file for another tool.

    Attributes:
        rank: which rank.
        source: the trace.
        path: link or copy.
        why: why it had to be a copy, "" for a link.
    """

    rank: int
    source: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Where the time of one rank's device went, as HTA divides it.

    Attributes:
        span_us: first start to last end of kernels and copies.
        compute_us: union of compute kernels.
        other_us: communication or copies, and no compute.
        idle_us: nothing.
        overlap_percent: share of communication during which compute ran; None without communication.
    """

    span_us: float
    compute_us: float
    other_us: float
    idle_us: float
    overlap_percent: float | None


@dataclass(frozen=True, slots=True)
class Beside:
    """Our numbers and HTA's for one rank.

    Attributes:
        rank: which rank.
        ours: from the trace.
        theirs: None if HTA has nothing for the rank.
        reasons: what in this trace HTA counts in another way.
    """

    rank: int
    ours: DeviceTime
    theirs: DeviceTime | None
    reasons: tuple[str, ...]


def for_hta(run: RunAnalysis, folder: str) -> list[Handed]:
    """Fill a folder with one file per rank that HTA reads.

    Args:
        run: whose traces.
        folder: made if it is not there; may hold no traces yet, as HTA would read them too.

    Raises:
        UsageError: the folder cannot be used.
        TraceError: a trace cannot be read.
    """
    target = _empty_folder(Path(folder))
    return [_hand_over(file, target / f"rank{file.rank}", _rank_for_hta) for file in run.files]


def for_tensorboard(run: RunAnalysis, logdir: str) -> list[Handed]:
    """Make a folder for the run below `logdir`, with one file per rank that the TensorBoard profiler reads.

    Raises:
        UsageError: the folder is there already and not empty, or cannot be made.
        TraceError: a trace cannot be read.
    """
    name = _plain_name(Path(run.name).name) or "run"
    target = _empty_folder(Path(logdir) / name)
    return [
        _hand_over(file, target / f"{_plain_name(file.host) or 'host'}_{file.rank}.pt.trace", _rank_in_json)
        for file in run.files
    ]


def _plain_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")


def _empty_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty; choose a folder that is, or one that is not there yet")
    except OSError as err:
        raise UsageError(f"{folder}: cannot be used: {err.strerror}") from err
    return folder


def _hand_over(file: TraceFile, stem: Path, rank_of: Callable[[str], int | None]) -> Handed:
    suffix, why = _as_it_is(file, rank_of)
    target = stem.with_name(stem.name + (suffix or ".json.gz"))
    try:
        if not why:
            target.symlink_to(os.path.abspath(file.path))
        else:
            _copy(file, target)
    except OSError as err:
        raise UsageError(f"{target}: cannot be written: {err.strerror or err}") from err
    return Handed(file.rank, file.path, str(target), why)


def _as_it_is(file: TraceFile, rank_of: Callable[[str], int | None]) -> tuple[str, str]:
    """(ending that tells its packing, why it cannot be used as it is or "")."""
    if "://" in file.path:
        return "", "not on this machine's file systems"
    with open(file.path, "rb") as raw:
        suffix = _ENDINGS.get(raw.read(2), ".json")
    if not suffix:
        return "", "packed with zstd"
    with open_text(file.path) as text:
        if text.read(PIECE).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            return "", "an array at the top level"
    if rank_of(file.path) != file.rank:
        return "", "its rank is not where the tool looks for it"
    return suffix, ""


def _rank_for_hta(path: str) -> int | None:
    """The rank that HTA takes a file for: it looks at the text, line by line."""
    with open_text(path) as text:
        found = _RANK.search(text.read(PIECE).partition(b'"traceEvents"')[0])
    return None if found is None else int(found.group(1))


def _rank_in_json(path: str) -> int | None:
    rank = _object(envelope(path).distributed).get("rank")
    return rank if isinstance(rank, int) else None


def _copy(file: TraceFile, target: Path) -> None:
    """The trace as an object with its rank in front, gzip; appears when it is complete."""
    top = envelope(file.path)
    info = _object(top.distributed)
    info = {**info, "rank": file.rank}
    if file.world_size:
        info["world_size"] = file.world_size
    head = ['"schemaVersion": 1', f'"distributedInfo": {json.dumps(info)}']
    if bytes(top.devices):
        head.append(f'"deviceProperties": {bytes(top.devices).decode()}')
    if top.base_ns is not None:
        head.append(f'"baseTimeNanoseconds": {top.base_ns}')
    if top.host:
        head.append(f'"host_name": {json.dumps(top.host)}')
    partial = target.with_name(f".{target.name}.tmp")
    try:
        with gzip.open(partial, "wb", 6) as out:
            out.write(("{" + ",\n".join(head) + ',\n"traceEvents": [\n').encode())
            separator = b""
            for events in pieces(file.path):
                if events:
                    out.write(separator + b",\n".join(_ENCODER.encode(e) for e in events))
                    separator = b",\n"
            out.write(b"\n]}\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _object(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        value = json.loads(bytes(raw) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------- HTA beside ours


def device_time(trace: RankTrace) -> DeviceTime:
    """Our numbers in HTA's terms: of all kernels and copies in the trace."""
    activity = find_activity(trace)
    busy = join(activity.compute, activity.communication, activity.copies)
    span = int(busy.ends[-1] - busy.starts[0]) if len(busy) else 0
    communication = activity.communication.length
    return DeviceTime(
        span_us=span / 1000,
        compute_us=activity.compute.length / 1000,
        other_us=(busy.length - activity.compute.length) / 1000,
        idle_us=(span - busy.length) / 1000,
        overlap_percent=100 * (1 - activity.exposed.length / communication) if communication else None,
    )


def beside_hta(handed: Sequence[Handed], folder: str, python: str) -> list[Beside]:
    """Our numbers beside HTA's, by rank, with the reasons for differences that are in the traces.

    Args:
        handed: what is in the folder.
        folder: as `for_hta` fills it.
        python: interpreter that HTA is installed for.

    Raises:
        UnsupportedError: HTA is not installed there, or the traces have no kernels.
        TraceError: a trace cannot be read.
        LoopoptError: HTA failed.
    """
    ours: dict[int, tuple[DeviceTime, tuple[str, ...]]] = {}
    for file in sorted(handed, key=lambda h: h.rank):
        trace = parse_trace(file.source)
        if (trace.category == Category.KERNEL).any():
            ours[file.rank] = device_time(trace), reasons_of(trace)
    if not ours:
        raise UnsupportedError("HTA knows kernels only, and these traces have none: they are of CPU ranks")
    theirs = run_hta(folder, python)
    return [Beside(rank, times, theirs.get(rank), reasons) for rank, (times, reasons) in ours.items()]


def reasons_of(trace: RankTrace) -> tuple[str, ...]:
    """What in a trace HTA counts in another way than we do; see docs/hta.md."""
    reasons = []
    device = (trace.category == Category.KERNEL) | (trace.category == Category.MEMCPY)
    if bool((trace.start_ns[device] % 1000 != 0).any() or (trace.duration_ns[device] % 1000 != 0).any()):
        reasons.append("HTA rounds times to whole microseconds: starts up, ends down")
    in_last, unseen = _left_out(trace)
    if in_last:
        reasons.append(f"HTA leaves the last profiler step out: {in_last} kernels and copies")
    if unseen:
        reasons.append(f"HTA leaves out what has no launch in the trace: {unseen} kernels and copies")
    kernels = {trace.names[i] for i in set(trace.name[trace.category == Category.KERNEL].tolist())}
    others = sorted(n for n in kernels if naming.COMMUNICATION_KERNEL.search(n) and not _HTA_COMMUNICATION.match(n))
    if others:
        reasons.append(f"HTA takes for communication only nccl*Kernel*, and not {_short(others[0])}")
    nothing = sorted(n for n in kernels if _HTA_NOTHING.match(n) and not naming.COMMUNICATION_KERNEL.search(n))
    if nothing:
        reasons.append(f"HTA takes kernels with Sync or Memcpy in the name for no compute: {_short(nothing[0])}")
    return tuple(reasons)


def _short(kernel: str) -> str:
    return re.split(r"[(<]", kernel, maxsplit=1)[0][:60]


def _left_out(trace: RankTrace) -> tuple[int, int]:
    """Kernels and copies that HTA drops: (launched in the last step or later, without a launch in the trace).

    It drops none where it sees fewer than two steps.
    """
    marks = rows_named(trace, _HTA_STEP.match, Category.ANNOTATION, Category.OPERATOR)
    if len(set(trace.name[marks].tolist())) < 2:
        return 0, 0
    last_ns = trace.start_ns[marks].max()
    host = (trace.category == Category.RUNTIME) & (trace.correlation != NO_ID)
    device = np.isin(trace.category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET))
    launched = np.isin(trace.correlation, trace.correlation[host]) & device
    kept = np.isin(trace.correlation, trace.correlation[host & (trace.start_ns < last_ns)]) & launched
    return int((launched & ~kept).sum()), int((device & ~launched).sum())


def run_hta(folder: str, python: str, timeout_s: float = 3600.0) -> dict[int, DeviceTime]:
    """HTA's overlap and temporal breakdown of the traces in a folder, by rank.

    HTA runs in a process of its own: it brings pandas along and writes to stdout.

    Args:
        folder: as `for_hta` fills it.
        python: interpreter that HTA is installed for.
        timeout_s: how long it may take.

    Raises:
        UnsupportedError: HTA is not installed there.
        LoopoptError: HTA failed; the message has its last words.
    """
    check_hta(python)
    with tempfile.TemporaryDirectory(prefix="loopopt-hta-") as scratch:
        result = Path(scratch) / "result.json"
        command = [python, "-c", _HTA_SCRIPT, os.path.abspath(folder), str(result)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as err:
            raise LoopoptError(f"HTA has not ended after {timeout_s:.0f} s") from err
        if done.returncode or not result.exists():
            words = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
            raise LoopoptError(f"HTA failed on {folder}: {words[0].strip()}")
        content: dict[str, dict[str, float]] = json.loads(result.read_text())
    return {int(rank): _their_time(values) for rank, values in content.items()}


def check_hta(python: str) -> None:
    """See that HTA can be imported.

    Raises:
        UnsupportedError: it cannot.
    """
    script = "import hta.trace_analysis"
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise UnsupportedError(f"{python}: cannot be run: {err}") from err
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        raise UnsupportedError(
            f"HolisticTraceAnalysis cannot be imported by {python} ({words[0].strip()}): `pip install 'loopopt[hta]'`"
        )


def _their_time(values: dict[str, float]) -> DeviceTime:
    overlap = values.get("overlap_percent")
    return DeviceTime(
        span_us=values.get("span_us", 0.0),
        compute_us=values.get("compute_us", 0.0),
        other_us=values.get("other_us", 0.0),
        idle_us=values.get("idle_us", 0.0),
        overlap_percent=None if overlap is None or overlap != overlap else overlap,
    )
