"""Kineto trace file -> `RankTrace`."""

from loopopt.parse.kineto import parse_trace

__all__ = ["parse_trace"]
