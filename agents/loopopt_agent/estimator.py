"""The estimation hook: translates FX nodes to table keys, and microseconds to Inductor's milliseconds."""

from __future__ import annotations

from typing import Any

from loopopt.timing import TimingTable, compute_key
from loopopt_agent import torch_api


class TableEstimator:
    """Called by the overlap scheduler as ``estimator(node, override_size) -> ms | None``.

    `override_size` is input plus output bytes of a hypothetical collective of the same kind (the scheduler's
    own convention); 0 asks for the latency. None means "not measured": the scheduler's own model answers.

    Attributes:
        calls: how often the scheduler asked; zero after a compile means that the plan was not used.
        hits: how often the table knew.
    """

    def __init__(self, table: TimingTable) -> None:
        self.table = table
        self.calls = 0
        self.hits = 0

    def __call__(self, node: Any, override_size: int | None = None) -> float | None:
        self.calls += 1
        answer_us = self._collective_us(node, override_size)
        if answer_us is None:
            answer_us = self._compute_us(node)
        if answer_us is None:
            return None
        self.hits += 1
        return answer_us / 1000.0

    def _collective_us(self, node: Any, override_size: int | None) -> float | None:
        found = torch_api.collective_node(node)
        if found is None:
            return None
        message_bytes = found.message_bytes
        if override_size is not None:
            moved = found.input_bytes + found.output_bytes
            message_bytes = round(override_size * message_bytes / moved) if moved else 0
        return self.table.collective_us(found.kind, found.group, found.group_size, message_bytes, found.dtype)

    def _compute_us(self, node: Any) -> float | None:
        found = torch_api.compute_node(node)
        return self.table.compute_us(compute_key(*found)) if found is not None else None
