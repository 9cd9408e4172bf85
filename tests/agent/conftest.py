"""What the tests of the agent share."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A gloo process group of this process alone."""
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
