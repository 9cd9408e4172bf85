"""Traces on disk or in a bucket -> `loopopt.analysis.Analysis`, without daemon or agent."""

from loopopt.offline.analyze import analyze

__all__ = ["analyze"]
