"""Boundaries and verdicts over a real c10d store, one thread per rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from loopopt_agent.agreement import AgreementLost, Board, Decision

from loopopt.errors import WireError

pytestmark = pytest.mark.torch


def boards(ranks: int, limit_s: float = 5.0) -> list[Board]:
    """One board per rank over the same store."""
    store = dist.HashStore()
    return [Board(store, rank, ranks, limit_s) for rank in range(ranks)]


def at_once(*calls: Callable[[], str]) -> list[str]:
    """Results of calls made at the same time."""
    results = [""] * len(calls)

    def run(index: int) -> None:
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_all_ranks_read_the_decision_of_rank_0() -> None:
    """A rank that comes early waits for it."""
    first, second = boards(2)
    got: list[Decision] = []
    waiting = threading.Thread(target=lambda: got.append(second.read(7)))
    waiting.start()
    time.sleep(0.05)
    assert got == []
    decision = Decision("capture", 9, {"window_id": "w", "steps": 2})
    first.decide(7, decision)
    waiting.join(5)
    assert got == [decision] == [first.read(7)]


def test_a_decision_that_never_comes_is_not_guessed() -> None:
    """The wait ends with an exception, not with "none"."""
    _, second = boards(2, limit_s=0.05)
    with pytest.raises(AgreementLost, match="d/7"):
        second.read(7)


def test_a_malformed_decision_is_refused() -> None:
    """What is not of the form, or points back, raises."""
    store = dist.HashStore()
    board = Board(store, 1, 2)
    store.set("d/3", "{")
    with pytest.raises(WireError, match="step 3"):
        board.read(3)
    board.decide(4, Decision("none", 4))
    with pytest.raises(WireError, match="points back"):
        board.read(4)


def test_equal_values_are_ok_for_everyone() -> None:
    """All the same: "ok" on all ranks."""
    ranks = boards(3)
    assert at_once(*[lambda b=b: b.settle("q", "abc") for b in ranks]) == ["ok"] * 3


def test_one_odd_value_is_no_for_everyone_by_name() -> None:
    """Rank 2 differs: all hear the same refusal."""
    ranks = boards(3)
    values = ["abc", "abc", "xyz"]
    answers = at_once(*[lambda b=b, v=v: b.settle("q", v) for b, v in zip(ranks, values, strict=True)])
    assert set(answers) == {"no: rank 2 has another order of collectives than rank 0"}


def test_an_error_is_a_veto_that_nobody_waits_for() -> None:
    """Rank 0 failed; rank 1 has not even come, and rank 2 need not wait for it."""
    ranks = boards(3, limit_s=30.0)
    answers = at_once(lambda: ranks[0].settle("q", "error: boom"), lambda: ranks[2].settle("q", "abc"))
    assert set(answers) == {"no: rank 0: error: boom"}
    assert ranks[1].settle("q", "abc") == "no: rank 0: error: boom"


def test_a_missing_rank_ends_the_wait_and_hears_the_same_later() -> None:
    """Two of three answer; the verdict names the third, and the third gets that verdict too."""
    ranks = boards(3, limit_s=0.1)
    answers = at_once(lambda: ranks[0].settle("q", "abc"), lambda: ranks[1].settle("q", "abc"))
    assert set(answers) == {"no: no answer from rank 2"}
    assert ranks[2].settle("q", "abc") in ("no: no answer from rank 2",)


def test_a_rank_that_gave_up_is_not_waited_for() -> None:
    """Poison ends the wait at once."""
    ranks = boards(2, limit_s=30.0)
    ranks[1].poison("broken")
    assert ranks[0].settle("q", "abc") == "no: rank 1 gave up: broken"


def test_answers_come_only_when_complete() -> None:
    """Rank 0 sees None until all have acknowledged."""
    ranks = boards(2)
    ranks[0].acknowledge("p", "ok")
    assert ranks[0].answers("p") is None
    ranks[1].acknowledge("p", "UnsupportedError: no")
    assert ranks[0].answers("p") == ["ok", "UnsupportedError: no"]


def test_old_decisions_are_deleted() -> None:
    """The store of a long job keeps a bounded number of decisions."""
    store = dist.HashStore()
    board = Board(store, 0, 1)
    for step in range(1, 501):
        board.decide(step, Decision("none", step + 1))
    assert store.num_keys() <= 201
    assert board.read(500).following == 501
