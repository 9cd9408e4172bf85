"""How the daemons of several nodes reach each other: through the store the job already has, by way of an agent.

A topic is a numbered list of texts in the store. Nothing here runs in the training thread, nothing is started
before a daemon asks for it (on one node it never does), and whatever goes wrong ends the mailbox, nothing else.

    <topic>          how many texts there are (a counter)
    <topic>/n        in how many parts the n-th comes; written when all of them are there
    <topic>/n/i      a part
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from loopopt import wire

POLL_S = 0.25
PART_BYTES = 2 * 1024 * 1024
"""The store refuses values from 8 MiB on."""
KEPT_POSTS = 4
"""Older posts of this rank are deleted: whoever wanted them has had them, or has given up."""


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str | bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...
    def delete_key(self, key: str) -> bool: ...


class Mailbox:
    """Posts and fetches of one rank, in a thread of its own.

    Args:
        rank: this rank.
        open_store: makes a connection of its own to the store; called in the mailbox's thread.
        deliver: called in the mailbox's thread with what was asked for.
        say: called once with why the mailbox has ended, if it has.
        clock: seconds.
    """

    def __init__(
        self,
        rank: int,
        open_store: Callable[[], Store],
        deliver: Callable[[wire.Posted], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._open_store = open_store
        self._deliver = deliver
        self._say = say
        self._clock = clock
        self._orders: queue.SimpleQueue[wire.Post | wire.Fetch | None] = queue.SimpleQueue()
        self._wanted: dict[str, tuple[int, float]] = {}
        self._mine: deque[tuple[str, int, int]] = deque()
        self._thread: threading.Thread | None = None
        self._broken = False

    def order(self, message: wire.Post | wire.Fetch) -> None:
        """Take an order of the daemon; returns at once."""
        if self._broken:
            return
        self._orders.put(message)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loopopt-mailbox", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread; what is not posted yet is dropped."""
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            store = self._open_store()
            while True:
                try:
                    order = self._orders.get(timeout=POLL_S if self._wanted else None)
                except queue.Empty:
                    self._look(store)
                    continue
                if order is None:
                    return
                if isinstance(order, wire.Post):
                    self._post(store, order)
                elif order.seconds > 0:
                    self._wanted[order.topic] = (0, self._clock() + order.seconds)
                else:
                    self._wanted.pop(order.topic, None)
        except Exception as err:  # noqa: BLE001  (the thread's door: the store goes away when the job ends)
            self._broken = True
            self._say(f"no exchange with other nodes any more: {err!r}")

    def _post(self, store: Store, order: wire.Post) -> None:
        content = order.content.encode()
        parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)] or [b""]
        number = store.add(order.topic, 1)
        for index, part in enumerate(parts):
            store.set(f"{order.topic}/{number}/{index}", part)
        store.set(f"{order.topic}/{number}", str(len(parts)))
        self._mine.append((order.topic, number, len(parts)))
        while len(self._mine) > KEPT_POSTS:
            topic, old, count = self._mine.popleft()
            with contextlib.suppress(RuntimeError):
                for key in (topic, f"{topic}/{old}", *(f"{topic}/{old}/{index}" for index in range(count))):
                    store.delete_key(key)

    def _look(self, store: Store) -> None:
        for topic, (seen, until) in list(self._wanted.items()):
            if self._clock() > until:
                del self._wanted[topic]
                continue
            while store.check([f"{topic}/{seen + 1}"]):
                seen += 1
                count = int(store.get(f"{topic}/{seen}"))
                content = b"".join(store.get(f"{topic}/{seen}/{index}") for index in range(count)).decode()
                self._deliver(wire.Posted(self._rank, topic, seen, content))
            self._wanted[topic] = (seen, until)
