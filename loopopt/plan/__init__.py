"""Which plans are worth trying: a pure function of what was measured."""

from loopopt.plan.candidates import Proposal, propose

__all__ = ["Proposal", "propose"]
