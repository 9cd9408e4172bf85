"""Two mailboxes on one real c10d store: what one daemon posts, another gets."""

from __future__ import annotations

import queue

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from loopopt_agent import mailbox, torch_api
from loopopt_agent.mailbox import Mailbox

from loopopt import wire

pytestmark = pytest.mark.torch


class Box:
    """A mailbox and what it has delivered."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        self.delivered: queue.SimpleQueue[wire.Posted] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.mailbox = Mailbox(rank, lambda: torch_api.own_connection(store), self.delivered.put, self.said.put)


@pytest.fixture
def store() -> dist.Store:
    """As a job has it."""
    return dist.PrefixStore("loopopt/0", dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False))


def test_a_post_arrives_whole_and_in_order_wherever_it_was_asked_for(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after it was posted; long texts in parts; other topics stay out."""
    monkeypatch.setattr(mailbox, "PART_BYTES", 1000)
    first, second, third = (Box(rank, store) for rank in range(3))
    long = "é" * 2501
    second.mailbox.order(wire.Post("w/1", long))
    first.mailbox.order(wire.Fetch("w/1", 30.0))
    got = first.delivered.get(timeout=20)
    assert got == wire.Posted(rank=0, topic="w/1", number=1, content=long)
    third.mailbox.order(wire.Post("w/2", "elsewhere"))
    third.mailbox.order(wire.Post("w/1", ""))
    assert first.delivered.get(timeout=20) == wire.Posted(0, "w/1", 2, "")
    for box in (first, second, third):
        box.mailbox.close()
        assert box.said.empty()


def test_a_fetch_ends_when_told_and_by_itself(store: dist.Store) -> None:
    """What is posted afterwards is not delivered."""
    box, other = Box(0, store), Box(1, store)
    box.mailbox.order(wire.Fetch("a", 60.0))
    box.mailbox.order(wire.Fetch("a", 0.0))
    box.mailbox.order(wire.Fetch("b", 1e-6))
    box.mailbox.order(wire.Fetch("c", 30.0))
    for topic in "abc":
        other.mailbox.order(wire.Post(topic, topic))
    assert box.delivered.get(timeout=20).content == "c"
    box.mailbox.close()
    other.mailbox.close()
    assert box.delivered.empty()


def test_old_posts_are_deleted(store: dist.Store) -> None:
    """The store of a long job does not grow with its windows."""
    box = Box(0, store)
    before = store.num_keys()
    for number in range(20):
        box.mailbox.order(wire.Post(f"w/{number}", "x"))
    box.mailbox.close()
    assert store.num_keys() - before == 3 * mailbox.KEPT_POSTS


def test_a_store_that_is_gone_ends_the_mailbox_and_nothing_else() -> None:
    """It is said once, and later orders are dropped."""

    def gone() -> dist.Store:
        raise RuntimeError("connection closed")

    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    box = Mailbox(0, gone, lambda posted: None, said.put)
    box.order(wire.Post("w/1", "x"))
    assert "connection closed" in said.get(timeout=20)
    box.order(wire.Post("w/1", "x"))
    box.close()
    assert said.empty()


def test_nothing_is_started_before_a_daemon_asks(store: dist.Store) -> None:
    """On one node there is no thread and no connection."""
    opened = []
    Mailbox(0, lambda: opened.append(1) or store, lambda posted: None, lambda text: None).close()
    assert opened == []
