"""Summaries of ranks sent as text: the merge cannot tell them from its own, and damage is refused."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loopopt.errors import WireError
from loopopt.measure import measurement_to_json
from loopopt.measure.merge import merge_ranks
from loopopt.measure.sending import summaries_from_text, summaries_to_text
from loopopt.measure.summary import RankSummary, summarize
from loopopt.parse import parse_trace

TRACES = Path(__file__).parents[2] / "data" / "traces"


def summaries(folder: str) -> list[RankSummary]:
    """Of real traces."""
    return [summarize(parse_trace(str(path))) for path in sorted((TRACES / folder).glob("*.gz"))]


@pytest.mark.parametrize("folder", ["gloo_2ranks", "gloo_4ranks_2x2"])
def test_the_merge_is_the_same_with_ranks_from_elsewhere(folder: str) -> None:
    """Half of the ranks come as text: same table, same times, to the last digit."""
    here = summaries(folder)
    half = len(here) // 2
    there = summaries_from_text(summaries_to_text(here[half:]))
    together = merge_ranks([*here[:half], *there]).measurement
    assert measurement_to_json(together) == measurement_to_json(merge_ranks(here).measurement)
    assert together.matched > 0


@pytest.mark.parametrize("text", ["", "not base64!", "AAAA", base64.b64encode(zlib.compress(b"\xc1")).decode()])
def test_what_is_no_summary_is_refused(text: str) -> None:
    """Whatever it is, the error is ours."""
    with pytest.raises(WireError, match="summaries of ranks"):
        summaries_from_text(text)


def test_a_text_cut_off_anywhere_is_refused() -> None:
    """Also in the middle of what unpacks well."""
    text = summaries_to_text(summaries("gloo_2ranks"))
    for length in range(0, len(text), 97):
        with pytest.raises(WireError):
            summaries_from_text(text[:length])


def test_columns_that_contradict_each_other_are_refused() -> None:
    """Lengths, and references to kinds that are not there."""
    good = summaries("gloo_2ranks")[0]
    short = replace(good, collectives=replace(good.collectives, end_ns=good.collectives.end_ns[1:]))
    astray = replace(good, collectives=replace(good.collectives, kind=good.collectives.kind + np.int16(99)))
    for bad, why in ((short, "different lengths"), (astray, "does not name")):
        with pytest.raises(WireError, match=why):
            summaries_from_text(summaries_to_text([bad]))


def test_a_column_of_something_else_is_refused() -> None:
    """Text where numbers should be."""
    packed = msgspec.to_builtins(summaries("gloo_2ranks")[:1], enc_hook=lambda column: column.tolist())
    packed[0]["collectives"]["start_ns"][0] = "soon"
    with pytest.raises(WireError):
        summaries_from_text(base64.b64encode(zlib.compress(msgspec.msgpack.encode(packed))).decode())
