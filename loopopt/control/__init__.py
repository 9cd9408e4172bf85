"""The loop: what to do next, given what has happened."""

from loopopt.control.compare import Gain, compare, spread
from loopopt.control.loop import Action, Loop, Note, Propose, SendApply, SendCapture, SendRelease, Trial

__all__ = [
    "Action",
    "Gain",
    "Loop",
    "Note",
    "Propose",
    "SendApply",
    "SendCapture",
    "SendRelease",
    "Trial",
    "compare",
    "spread",
]
