"""Deliberate failures for tests: ``LOOPOPT_FAULT="compile:1,capture"`` fails phase "compile" on rank 1 and
phase "capture" on every rank. Without the variable every check is one look-up in an empty set."""

from __future__ import annotations

import os

PHASES = (
    "arm",
    "step",
    "decision",
    "offer",
    "capture",
    "write",
    "torn",
    "apply",
    "compile",
    "order",
    "result",
    "client",
)


class InjectedFaultError(RuntimeError):
    """Raised where a test asked for it."""


class Faults:
    """The phases that fail on this rank."""

    def __init__(self, spec: str, rank: int) -> None:
        self._phases = set()
        for part in filter(None, spec.split(",")):
            phase, _, only = part.partition(":")
            if not only or int(only) == rank:
                self._phases.add(phase)

    @classmethod
    def from_environment(cls, rank: int) -> Faults:
        """Read ``LOOPOPT_FAULT``."""
        return cls(os.environ.get("LOOPOPT_FAULT", ""), rank)

    def hit(self, phase: str) -> None:
        """Raise if this phase is to fail here."""
        if phase in self._phases:
            raise InjectedFaultError(f"injected fault in phase {phase!r}")

    def wants(self, phase: str) -> bool:
        """Whether this phase is to go wrong here without an exception."""
        return phase in self._phases
