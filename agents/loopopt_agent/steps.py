"""Which optimizer steps end a training step.

Several optimizers per iteration (a GAN, parameter groups under different optimizers) call the hook several
times. The sequence of optimizers is periodic; its period is one training step::

    calls      a a b a a b a a b
    period     3, a step ends at each b
"""

from __future__ import annotations

_HISTORY = 64


class StepCounter:
    """Counts training steps from optimizer calls.

    A single optimizer is taken to step once per iteration. As soon as another one is seen, the period is
    looked for; until it is found (three whole periods) no step is counted.
    """

    def __init__(self) -> None:
        self._calls: list[int] = []
        self._period = 1
        self._phase = 0
        self.explicit = False

    @property
    def period(self) -> int:
        """Optimizer calls per training step; 0 while it is not known."""
        return self._period

    def on_optimizer(self, optimizer: int) -> bool:
        """Note a call; whether it ends a training step."""
        if self.explicit:
            return False
        if self._period == 1 and len(self._calls) >= 4 and self._calls[-1] == optimizer:
            return True  # the common case, without any bookkeeping
        self._calls.append(optimizer)
        del self._calls[:-_HISTORY]
        if self._period and self._fits(self._period):
            self._phase += 1
            return self._phase % self._period == 0
        self._period = self._find()
        self._phase = 0
        return self._period > 0

    def _fits(self, period: int) -> bool:
        calls = self._calls
        return len(calls) <= period or calls[-1] == calls[-1 - period]

    def _find(self) -> int:
        calls = self._calls
        optimizers = len(set(calls))
        # A period has every optimizer in it: three calls of one in a row are not an iteration of their own.
        for period in range(optimizers, len(calls) // 3 + 1):
            tail = calls[-3 * period :]
            if len(set(tail)) < optimizers:
                continue
            if all(tail[i] == tail[i + period] for i in range(2 * period)):
                return period
        return 0
