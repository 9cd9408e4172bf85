"""How all ranks do the same thing at the same step, over the store the job already has.

A chain of *boundaries*: rank 0, and no one else, writes the decision for the next boundary while it is at
the one before; a rank that arrives reads that one key. Each decision names the boundary after it, so the
spacing follows the step time without anybody having to know it::

    step        2            2+m                2+m+n
    rank 0   writes d/2+m   writes d/2+m+n     ...
    all                     read  d/2+m  ->    read d/2+m+n

A rank that cannot read its decision waits as it would for a collective. If the wait passes `limit_s` it
poisons the board and acts on nothing any more; whatever the decision was, the others then find out in
`settle`, whose verdict is written once by whoever is first (compare-and-set) and read by everyone.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopopt.errors import WireError

_KEPT_DECISIONS = 200


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str | bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def delete_key(self, key: str) -> bool: ...


class AgreementLost(Exception):  # noqa: N818  (an outcome, not a bug)
    """The other ranks did not answer in time, or one of them gave up."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do at one boundary.

    Attributes:
        action: "none", "capture", "offer", "apply", "release".
        following: step of the next boundary.
        details: arguments of the action.
    """

    action: str
    following: int
    details: dict[str, Any] = field(default_factory=dict)


class Board:
    """The keys of one job (one attempt of it) in the c10d store.

    Args:
        store: already prefixed for loopopt and the attempt.
        rank: this rank.
        world_size: ranks in the job.
        limit_s: how long a rank waits for another before it gives up.
        clock, sleep: seconds; passed in by tests.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        limit_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._written: deque[int] = deque()

    def decide(self, boundary: int, decision: Decision) -> None:
        """Rank 0: write the decision for a boundary."""
        body = {"action": decision.action, "following": decision.following, "details": decision.details}
        self._store.set(f"d/{boundary}", json.dumps(body))
        self._written.append(boundary)
        if len(self._written) > _KEPT_DECISIONS:
            # A job of weeks must not fill the store; no rank is that far behind (it would be in a collective).
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(f"d/{self._written.popleft()}")

    def read(self, boundary: int) -> Decision:
        """The decision for a boundary; waits for it.

        Raises:
            AgreementLost: not there within the limit.
            WireError: there, but not of the expected form.
        """
        self._wait(f"d/{boundary}", self._limit_s)
        try:
            body = json.loads(self._store.get(f"d/{boundary}"))
            decision = Decision(str(body["action"]), int(body["following"]), dict(body["details"]))
        except (ValueError, KeyError, TypeError) as err:
            raise WireError(f"decision for step {boundary} is malformed: {err!r}") from err
        if decision.following <= boundary:
            raise WireError(f"decision for step {boundary} points back to {decision.following}")
        return decision

    def lead(self, host: str) -> None:
        """Rank 0, before its first decision: say which host it is on."""
        self._store.set("leader", host)

    def leader(self) -> str:
        """Host of rank 0; there as soon as a decision has been read."""
        return self._store.get("leader").decode() if self._store.check(["leader"]) else ""

    def publish(self, name: str, content: str) -> None:
        """Rank 0: put content under its hash before it is offered."""
        self._store.set(f"c/{name}", content)

    def fetch(self, name: str) -> str:
        """Content by hash; waits for it."""
        self._wait(f"c/{name}", self._limit_s)
        return self._store.get(f"c/{name}").decode()

    def acknowledge(self, offer: str, answer: str) -> None:
        """Each rank: "ok" or why not, for one offer."""
        self._store.set(f"a/{offer}/{self.rank}", answer)

    def answers(self, offer: str) -> list[str] | None:
        """Rank 0: all answers to an offer, in rank order; None while one is missing."""
        keys = [f"a/{offer}/{rank}" for rank in range(self.world_size)]
        if not self._store.check(keys):
            return None
        return [self._store.get(key).decode() for key in keys]

    def settle(self, question: str, mine: str, limit_s: float | None = None) -> str:
        """All ranks state a value; all get the same verdict: "ok", or "no: " and why.

        Args:
            question: unique name, the same on all ranks.
            mine: this rank's value; one that starts with "error" is a veto.
            limit_s: how long to wait for the others; the verdict is then "no".

        The first rank that has seen enough writes the verdict; one that comes later than the limit finds it.
        """
        self._store.set(f"q/{question}/{self.rank}", mine)
        keys = [f"q/{question}/{rank}" for rank in range(self.world_size)]
        verdict_key = f"v/{question}"
        deadline = self._clock() + (self._limit_s if limit_s is None else limit_s)
        # A veto is written as the verdict at once: the others find it there and need not look for it.
        verdict = f"no: rank {self.rank}: {mine}" if mine.startswith("error") else self._judge(keys)
        pause = 0.001
        while verdict is None and not self._store.check([verdict_key]):
            if self._store.check(["poison"]):
                verdict = f"no: {self._store.get('poison').decode()}"
            elif self._clock() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                verdict = f"no: no answer from rank {', '.join(map(str, missing))}"
            else:
                self._sleep(pause)
                pause = min(pause * 2, 0.05)
                verdict = self._judge(keys)
        if verdict is None:
            return self._store.get(verdict_key).decode()
        # An empty `expected` stores `desired` only if the key is not there yet: the first verdict stands.
        return self._store.compare_set(verdict_key, "", verdict).decode()

    def _judge(self, keys: list[str]) -> str | None:
        if not self._store.check(keys):
            return None
        values = [self._store.get(key).decode() for key in keys]
        for rank, value in enumerate(values):
            if value.startswith("error"):
                return f"no: rank {rank}: {value}"
            if value != values[0]:
                return f"no: rank {rank} has another order of collectives than rank 0"
        return "ok"

    def poison(self, reason: str) -> None:
        """This rank takes part in nothing any more: nobody shall wait for it."""
        self._store.set("poison", f"rank {self.rank} gave up: {reason}")

    def _wait(self, key: str, limit_s: float) -> None:
        if self._store.check([key]):
            return
        deadline = self._clock() + limit_s
        pause = 0.0005
        while not self._store.check([key]):
            if self._clock() > deadline:
                raise AgreementLost(f"nothing under {key!r} after {limit_s:.0f} s")
            self._sleep(pause)
            pause = min(pause * 2, 0.02)
