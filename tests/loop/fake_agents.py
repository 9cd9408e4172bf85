"""Agents without torch: real sockets, real messages, real (small) traces, made-up step times."""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

from loopopt import wire
from loopopt.plans import BASELINE, Plan

TRACES = Path(__file__).parent.parent / "data" / "traces" / "gloo_2ranks"
"""Two ranks, three steps, 9 to 12 ms of exposed communication in each."""

SPEEDS_US = {"as it was": 100_000.0, "schedule": 90_000.0, "schedule + bucket": 80_000.0}
OTHER_US = 120_000.0
_PAUSE_S = 0.02
_BATCH = 5


class FakeAgents:
    """All ranks of a job in one thread. `world` ranks step in lockstep and reconnect when the daemon goes away.

    Attributes:
        torn: the next so many windows are written torn in half.
        applied: labels of the plans that were ordered, oldest first.
        released: `restore` of the releases that came.
    """

    def __init__(self, job_dir: Path, world: int = 2, mode: str = "closed_loop") -> None:
        self.job_dir = job_dir
        self.world = world
        self.mode = mode
        self.pid = os.getpid() * 1000
        self.attempt = 0
        self.torn = 0
        self.applied: list[str] = []
        self.released: list[bool] = []
        self.welcomes = 0
        self.plan_id, self.label = "as-it-was", "as it was"
        self._lines: dict[int, socket.socket] = {}
        self._inbox: dict[int, bytes] = {}
        self._step = 100
        self._hang_up: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def _reason(self) -> str:
        return "" if self.mode == "closed_loop" else "not compiled"

    def close(self) -> None:
        """The job ends."""
        self._stop.set()
        self._thread.join(10)
        for line in self._lines.values():
            line.close()

    def hang_up(self, rank: int) -> None:
        """One rank's connection breaks; the process lives and connects again."""
        self._hang_up.add(rank)

    def restart(self) -> None:
        """The launcher starts all ranks again: new processes, the job's own schedule."""
        self.pid += 1
        self.attempt += 1
        self.plan_id, self.label = "as-it-was", "as it was"
        self._step = 100
        self._hang_up.update(range(self.world))

    def _run(self) -> None:
        beat_s = 0.0
        while not self._stop.wait(_PAUSE_S):
            for rank in range(self.world):
                if rank in self._hang_up or rank not in self._lines:
                    self._connect(rank)
            if len(self._lines) < self.world:
                continue
            self._train()
            for order in self._orders():
                self._obey(order)
            if time.monotonic() > beat_s:
                beat_s = time.monotonic() + 0.5
                for rank in range(self.world):
                    self._send(rank, wire.Heartbeat(rank, self._step, self._step * 10.0, True, self.mode, self._reason))

    def _connect(self, rank: int) -> None:
        self._hang_up.discard(rank)
        former = self._lines.pop(rank, None)
        if former is not None:
            former.close()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(str(self.job_dir / wire.SOCKET_NAME))
        except OSError:
            line.close()
            return
        self._lines[rank], self._inbox[rank] = line, b""
        hello: dict[str, Any] = {"torch": "2.13.0", "backend": "gloo", "device": "cpu", "host": "here"}
        self._send(
            rank,
            wire.Hello(
                job="night",
                rank=rank,
                local_rank=rank,
                world_size=self.world,
                pid=self.pid + 100 * rank,
                attempt=self.attempt,
                mode=self.mode,
                reason=self._reason,
                step=self._step,
                active_plan=self.plan_id,
                **hello,
            ),
        )

    def _send(self, rank: int, message: wire.Message) -> None:
        line = self._lines.get(rank)
        if line is None:
            return
        try:
            line.sendall(wire.encode(message))
        except OSError:
            self._lines.pop(rank).close()

    def _train(self, kind: str = "plain", count: int = _BATCH) -> None:
        base = SPEEDS_US.get(self.label, OTHER_US)
        for rank in range(self.world):
            durations = [base * (1 + 0.01 * ((step * 7) % 5) - 0.002 * rank) for step in range(count)]
            self._send(rank, wire.Steps(rank, self._step, durations, self.plan_id, kind))
        self._step += count

    def _orders(self) -> list[wire.Message]:
        """What the daemon sent; only rank 0 is told anything but Welcome."""
        orders: list[wire.Message] = []
        readable, _, _ = select.select(list(self._lines.values()), [], [], 0)
        for rank, line in list(self._lines.items()):
            if line not in readable:
                continue
            data = b""
            with contextlib.suppress(OSError):
                data = line.recv(1 << 20)
            if not data:
                self._lines.pop(rank).close()
                continue
            *whole, self._inbox[rank] = (self._inbox[rank] + data).split(b"\n")
            for message in map(wire.decode, whole):
                if isinstance(message, wire.Welcome):
                    self.welcomes += 1
                else:
                    assert rank == 0, f"{message.TYPE} was sent to rank {rank}"
                    orders.append(message)
        return orders

    def _obey(self, order: wire.Message) -> None:
        if isinstance(order, wire.Capture):
            self._trace(order)
        elif isinstance(order, wire.Apply):
            self._switch(Plan.from_json(order.plan))
        elif isinstance(order, wire.Release):
            self.released.append(order.restore)
            if order.restore:
                self._switch(BASELINE)

    def _switch(self, plan: Plan) -> None:
        self._train()
        self.plan_id, self.label = plan.plan_id, plan.label
        self.applied.append(plan.label)
        self._train("compiling", 1)
        for rank in range(self.world):
            self._send(rank, wire.PlanResult(rank, self.plan_id, self._step, "applied", compile_us=2e6, graphs=1))

    def _trace(self, order: wire.Capture) -> None:
        folder = self.job_dir / wire.TRACE_DIR_NAME / order.window_id
        folder.mkdir(parents=True, exist_ok=True)
        first = self._step
        self._train("traced", order.steps)
        for rank in range(self.world):
            content = gzip.decompress((TRACES / f"rank{rank}.pt.trace.json.gz").read_bytes())
            path = folder / f"rank{rank}.pt.trace.json"
            path.write_bytes(content[: len(content) // 2] if self.torn and rank == 1 else content)
            self._send(
                rank,
                wire.WindowDone(rank, order.window_id, first, order.steps, self.plan_id, str(path), overhead_us=500.0),
            )
        self.torn = max(0, self.torn - 1)
