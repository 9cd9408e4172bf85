"""Messages between an agent (one per rank, in the training process) and the daemon (one per node).

The daemons of a job on several nodes have no line to each other: `Post`, `Fetch` and `Posted` let them use the
store the job already has, through one of their agents.

One message is one line of JSON over a Unix stream socket: ``{"v": 1, "type": "steps", ...}``. Standard
library only, versioned, no pickle. Unknown *fields* are ignored (a newer peer may send more); an unknown
type or version is a `WireError`, and the receiver drops the connection, nothing else.

Also the names both sides must agree on without talking: environment variables and the socket path.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from loopopt.errors import WireError

VERSION = 1
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""A longer line is refused (a plan carries its timing table, a few hundred kB at most)."""

ENV_ENABLE = "LOOPOPT"
""""1" arms the agent in a rank; unset or anything else, the agent returns at once."""
ENV_DIR = "LOOPOPT_DIR"
"""Job directory, the same absolute path for ranks and daemon: socket, traces, state."""
ENV_JOB = "LOOPOPT_JOB"
"""Job name, the directory's name if unset."""

SOCKET_NAME = "agent.sock"
"""Agents connect here, inside the job directory (0600)."""
CONTROL_SOCKET_NAME = "control.sock"
"""The command line talks to the daemon here, inside the job directory (0600)."""
TRACE_DIR_NAME = "traces"
GRAPH_DIR_NAME = "graphs"
"""`<signature>.json` of each compiled graph (`loopopt.graphs`), written by rank 0's agent under a plan."""
STATE_NAME = "state.sqlite"
RANKS_DIR_NAME = "ranks"
"""`<rank>.<pid>.json` written by each armed agent: how `loopopt attach` finds jobs (see agent `presence`)."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base: `TYPE` is the wire name."""

    TYPE: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """Agent -> daemon, first message of a connection."""

    TYPE: ClassVar[str] = "hello"
    job: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host: str
    torch: str
    backend: str
    device: str
    attempt: int = 0
    """torchrun restart count."""
    mode: str = "closed_loop"
    """"closed_loop", or "observe" with `reason`."""
    reason: str = ""
    step: int = 0
    active_plan: str = "as-it-was"
    """Plan id the job runs at the moment (a restarted daemon learns it here)."""
    features: dict[str, str] = field(default_factory=dict)
    """Probe name -> "ok" or why not."""
    leader: str = ""
    """Host of rank 0, whose daemon decides; empty before the first decision has been read."""


@dataclass(frozen=True, slots=True)
class Steps(Message):
    """Agent -> daemon: durations of consecutive whole steps, microseconds, each starting at `first_step`."""

    TYPE: ClassVar[str] = "steps"
    rank: int
    first_step: int
    durations_us: list[float]
    plan_id: str
    kind: str = "plain"
    """"plain"; "traced" (a window was open); "compiling" (a plan was switched in this step)."""
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Agent -> daemon, every few seconds from a background thread."""

    TYPE: ClassVar[str] = "heartbeat"
    rank: int
    step: int
    agent_us: float
    """Time the agent has spent inside the training thread since the start, microseconds."""
    compiled: bool = False
    """Whether a compiled graph with collectives has been seen on this rank."""
    mode: str = "closed_loop"
    """"closed_loop", or "observe" with `reason` (a job without torch.compile turns out so only later)."""
    reason: str = ""
    leader: str = ""
    """As in `Hello`."""


@dataclass(frozen=True, slots=True)
class WindowDone(Message):
    """Agent -> daemon: a trace window was written, or why not."""

    TYPE: ClassVar[str] = "window_done"
    rank: int
    window_id: str
    first_step: int
    steps: int
    plan_id: str
    path: str = ""
    error: str = ""
    """Empty if `path` is good; else a short reason ("user_profiler", "disk", "internal", ...), detail after a colon."""
    overhead_us: float = 0.0
    """Time starting and stopping took in the training thread."""


@dataclass(frozen=True, slots=True)
class PlanResult(Message):
    """Agent -> daemon: what became of an `Apply` on this rank."""

    TYPE: ClassVar[str] = "plan_result"
    rank: int
    plan_id: str
    step: int
    outcome: str
    """"applied"; "infeasible" (all ranks run the unscheduled graph together); "unused" (nothing was compiled)."""
    reason: str = ""
    compile_us: float = 0.0
    """Stall the switch cost this rank, microseconds."""
    graphs: int = 0
    """Graphs with collectives compiled under the plan."""
    estimator_calls: int = 0
    estimator_hits: int = 0
    order_digest: str = ""


@dataclass(frozen=True, slots=True)
class Disarmed(Message):
    """Agent -> daemon: the agent hit an internal error and will do nothing more on this rank."""

    TYPE: ClassVar[str] = "disarmed"
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """Agent -> daemon: the rank is ending."""

    TYPE: ClassVar[str] = "goodbye"
    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Daemon -> agent, answer to `Hello`."""

    TYPE: ClassVar[str] = "welcome"
    pid: int
    loopopt: str


@dataclass(frozen=True, slots=True)
class Capture(Message):
    """Daemon -> rank 0's agent: trace `steps` whole steps on every rank into `<dir>/traces/<window_id>/`.

    Each rank writes `rank<rank>.pt.trace.json` there and reports `WindowDone`.
    """

    TYPE: ClassVar[str] = "capture"
    window_id: str
    steps: int


@dataclass(frozen=True, slots=True)
class Apply(Message):
    """Daemon -> rank 0's agent: have all ranks switch to this plan (`Plan.to_json()`)."""

    TYPE: ClassVar[str] = "apply"
    plan: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Release(Message):
    """Daemon -> rank 0's agent: a detach; with `restore`, back to the original schedule first."""

    TYPE: ClassVar[str] = "release"
    restore: bool = False


@dataclass(frozen=True, slots=True)
class Post(Message):
    """Daemon -> an agent: put a text under a topic in the job's store, for the daemons of other nodes."""

    TYPE: ClassVar[str] = "post"
    topic: str
    content: str


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Daemon -> an agent: for so many seconds, hand on what is or will be posted under a topic; 0 ends it."""

    TYPE: ClassVar[str] = "fetch"
    topic: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Posted(Message):
    """Agent -> daemon: one text of a topic that was asked for; `number` counts them from 1."""

    TYPE: ClassVar[str] = "posted"
    rank: int
    topic: str
    number: int
    content: str


MESSAGES: dict[str, type[Message]] = {
    m.TYPE: m
    for m in (
        Hello,
        Steps,
        Heartbeat,
        WindowDone,
        PlanResult,
        Disarmed,
        Goodbye,
        Welcome,
        Capture,
        Apply,
        Release,
        Post,
        Fetch,
        Posted,
    )
}

_JSON_TYPES = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def encode(message: Message) -> bytes:
    """One line of JSON, newline included."""
    body: dict[str, Any] = {"v": VERSION, "type": message.TYPE}
    for f in fields(message):
        body[f.name] = getattr(message, f.name)
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Inverse of `encode`.

    Raises:
        WireError: not JSON, wrong version, unknown type, or a field missing or of the wrong type.
    """
    if len(line) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(line)} bytes is longer than {MAX_MESSAGE_BYTES}")
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise WireError(f"message is not JSON: {err}") from err
    if not isinstance(body, dict):
        raise WireError("message is not a JSON object")
    if body.get("v") != VERSION:
        raise WireError(f"message version {body.get('v')!r}, this side speaks {VERSION}: use the same loopopt release")
    kind = body.get("type")
    cls = MESSAGES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise WireError(f"unknown message type {kind!r}")
    values: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in body:
            values[f.name] = _checked(cls.TYPE, f.name, str(f.type), body[f.name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise WireError(f"{cls.TYPE}: field {f.name!r} is missing")
    return cls(**values)


def _checked(kind: str, name: str, declared: str, value: Any) -> Any:
    wanted = _JSON_TYPES.get(declared)
    if wanted is not None:
        ok = isinstance(value, wanted) and (declared == "bool" or not isinstance(value, bool))
    elif declared.startswith("list[float]"):
        ok = isinstance(value, list) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value)
    else:
        ok = isinstance(value, dict)
    if not ok:
        raise WireError(f"{kind}: field {name!r} should be {declared}, got {type(value).__name__}")
    return value
