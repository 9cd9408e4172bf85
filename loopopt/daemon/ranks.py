"""Who is there: the ranks of the job as their connections tell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loopopt import wire
from loopopt.plans import BASELINE


@dataclass(slots=True)
class Rank:
    """One registered rank. `writer` is None when its connection is gone."""

    hello: wire.Hello
    writer: asyncio.StreamWriter | None
    seen_s: float
    since_s: float
    step: int = 0
    agent_us: float = 0.0
    mode: str = "closed_loop"
    reason: str = ""
    disarmed: str = ""
    ended: bool = False
    plan_id: str = BASELINE.plan_id
    """Plan it runs, by its latest message."""
    leader: str = ""
    """Host of rank 0, by its latest message."""

    @property
    def live(self) -> bool:
        """Whether it can be talked to."""
        return self.writer is not None and not self.disarmed

    def state(self) -> str:
        """As in the metric `loopopt_registered_ranks`."""
        if self.disarmed:
            return "disarmed"
        if self.writer is None:
            return "lost"
        return "observe" if self.mode == "observe" else "live"


class Registry:
    """Ranks by number."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}

    def hello(self, hello: wire.Hello, writer: asyncio.StreamWriter, now_s: float) -> bool:
        """Note a rank; whether it is a new process (a restart of the job, or a daemon that is new itself)."""
        old = self.ranks.get(hello.rank)
        fresh = old is None or old.hello.pid != hello.pid
        if fresh:
            rank = Rank(hello, writer, now_s, now_s, step=hello.step, mode=hello.mode, reason=hello.reason)
            self.ranks[hello.rank] = rank
        else:
            assert old is not None
            old.hello, old.writer, old.seen_s, old.ended = hello, writer, now_s, False
        self.ranks[hello.rank].plan_id = hello.active_plan
        self.ranks[hello.rank].leader = hello.leader
        newest = max(r.hello.attempt for r in self.ranks.values())
        for number in [n for n, r in self.ranks.items() if r.hello.attempt < newest]:
            del self.ranks[number]
        return fresh

    def drop(self, writer: asyncio.StreamWriter) -> Rank | None:
        """A connection has ended; the rank it belonged to."""
        for rank in self.ranks.values():
            if rank.writer is writer:
                rank.writer = None
                return rank
        return None

    def complete(self, now_s: float, settle_s: float = 3.0) -> bool:
        """Whether all local ranks are there: all of the job, or no new one for a while (other nodes have theirs)."""
        live = [r for r in self.ranks.values() if r.live]
        if not live or 0 not in self.ranks:
            return False
        if len(live) == live[0].hello.world_size:
            return True
        return len(live) == len(self.ranks) and all(now_s - r.since_s > settle_s for r in live)

    @property
    def identity(self) -> str:
        """Changes whenever a rank is another process than before."""
        return " ".join(f"{n}:{r.hello.host}:{r.hello.pid}:{r.hello.attempt}" for n, r in sorted(self.ranks.items()))

    @property
    def fingerprint(self) -> dict[str, str]:
        """Software and hardware the ranks' durations belong to."""
        hello = next((r.hello for r in self.ranks.values()), None)
        if hello is None:
            return {}
        told = {"torch": hello.torch, "device": hello.device, "backend": hello.backend}
        return {**told, "world_size": str(hello.world_size)}

    @property
    def leader(self) -> Rank | None:
        """Rank 0, if it can be talked to."""
        rank = self.ranks.get(0)
        return rank if rank is not None and rank.live else None

    @property
    def speaker(self) -> Rank | None:
        """The rank through which other nodes are reached: the lowest that can be talked to."""
        return next((rank for _, rank in sorted(self.ranks.items()) if rank.live), None)

    @property
    def elsewhere(self) -> list[int]:
        """Ranks of the job that other nodes have."""
        world = next((r.hello.world_size for r in self.ranks.values()), 0)
        return [rank for rank in range(world) if rank not in self.ranks]

    def follows(self, now_s: float, settle_s: float = 10.0) -> str:
        """Host of the node whose daemon decides; empty if that is this one, or not known yet.

        Rank 0 of this very host may only be late to register, unless that takes very long: then another machine has
        the same name.
        """
        live = [r for r in self.ranks.values() if r.live]
        if not live or 0 in self.ranks or not live[0].leader:
            return ""
        late = all(now_s - r.since_s > settle_s for r in live)
        return live[0].leader if late or live[0].leader != live[0].hello.host else ""

    def why_observe(self) -> str:
        """Why the loop cannot be closed; empty if it can."""
        for number, rank in sorted(self.ranks.items()):
            if rank.disarmed:
                return f"rank {number} has disarmed itself: {rank.disarmed}"
            if rank.mode == "observe":
                return rank.reason or f"rank {number} only observes"
        return ""

    def counts(self) -> dict[str, int]:
        """Ranks by state."""
        counts = {"live": 0, "lost": 0, "observe": 0, "disarmed": 0}
        for rank in self.ranks.values():
            if not rank.ended:
                counts[rank.state()] += 1
        return counts
