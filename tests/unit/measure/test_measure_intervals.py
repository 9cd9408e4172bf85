"""Interval arithmetic against a brute-force oracle on a small grid of instants."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loopopt.measure import intervals as iv

SPAN = 40
spans = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(0, 12)).map(lambda p: (p[0], min(p[0] + p[1], SPAN))), max_size=12
)


def arrays(pairs: list[tuple[int, int]]) -> tuple[iv.Times, iv.Times]:
    data = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return data[:, 0], data[:, 1]


def union_of(pairs: list[tuple[int, int]]) -> iv.Intervals:
    return iv.union(*arrays(pairs))


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def held(found: iv.Intervals) -> set[int]:
    pairs = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert all(a < b for a, b in pairs), "no interval is empty"
    assert all(x[1] < y[0] for x, y in pairwise(pairs)), "sorted, apart, not touching"
    return instants(pairs)


@given(spans)
def test_union_holds_the_instants_of_its_parts(pairs: list[tuple[int, int]]) -> None:
    """A union holds exactly the instants of the intervals it was made from, in canonical form."""
    found = union_of(pairs)
    assert held(found) == instants(pairs)
    assert found.length == len(instants(pairs))


@given(spans, spans)
def test_set_operations_agree_with_sets_of_instants(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    """Intersection, difference and join are those of the sets of instants."""
    left, right = union_of(a), union_of(b)
    assert held(iv.intersect(left, right)) == instants(a) & instants(b)
    assert held(iv.subtract(left, right)) == instants(a) - instants(b)
    assert held(iv.join(left, right)) == instants(a) | instants(b)


@given(spans, st.integers(0, SPAN), st.integers(0, SPAN))
def test_lengths_within_a_span(pairs: list[tuple[int, int]], x: int, y: int) -> None:
    """`within` and `clip` measure the instants of the set in [start, end)."""
    start, end = min(x, y), max(x, y)
    found = union_of(pairs)
    expected = {t for t in instants(pairs) if start <= t < end}
    assert int(found.within(np.array([start]), np.array([end]))[0]) == len(expected)
    assert held(iv.clip(found, start, end)) == expected


@given(spans)
def test_every_instant_has_one_owner_the_earliest_started(pairs: list[tuple[int, int]]) -> None:
    """The owned parts are disjoint, cover the union, and belong to the earliest-started interval in flight."""
    own_start, own_end = iv.owned(*arrays(pairs))
    owners: dict[int, int] = {}
    for index, (a, b) in enumerate(zip(own_start.tolist(), own_end.tolist(), strict=True)):
        for t in range(a, b):
            assert t not in owners
            owners[t] = index
    expected = {
        t: min((i for i, (a, b) in enumerate(pairs) if a <= t < b), key=lambda i: (pairs[i][0], i))
        for t in instants(pairs)
    }
    assert owners == expected


def test_worked_example_of_the_docstring() -> None:
    """The drawing at the top of the module is true."""
    a, b = union_of([(0, 5), (11, 16)]), union_of([(3, 13)])
    left = iv.subtract(a, b)
    assert (left.starts.tolist(), left.ends.tolist()) == ([0, 13], [3, 16])
    assert iv.join(a, b).length == 16


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    """Times near the end of int64 lose nothing."""
    base = 2**62
    a = iv.union(np.array([base, base + 5]), np.array([base + 3, base + 6]))
    assert a.length == 4
    assert iv.subtract(a, iv.union(np.array([base + 1]), np.array([base + 2]))).length == 3
