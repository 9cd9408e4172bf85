"""Which plans are worth trying, and what a schedule would come to: pure functions of what was measured."""

from loopopt.plan.candidates import Proposal, propose
from loopopt.plan.costs import WhatIf
from loopopt.plan.whatif import what_if

__all__ = ["Proposal", "WhatIf", "propose", "what_if"]
