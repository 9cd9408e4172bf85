"""Make the gloo traces beside this file: real ranks, real collectives, three marked steps.

    torchrun --nproc-per-node 2 tests/data/traces/make_gloo.py tests/data/traces/gloo_2ranks
    torchrun --nproc-per-node 4 tests/data/traces/make_gloo.py tests/data/traces/gloo_4ranks_2x2

Four ranks form a 2 x 2 mesh: gather, scatter and exchange within a row, all-reduce within a column, and two eager
collectives over all ranks. What each step does is written in EXPECTED below, for the tests.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

FIRST_STEP = 5
STEPS = 3

# Per step: kind -> message bytes (the larger of a rank's input and output), float32.
EXPECTED: dict[str, list[int]] = {
    "all_gather": [256 * 256 * 4, 256 * 128 * 4, 0],  # the last one: two elements of every rank
    "reduce_scatter": [256 * 128 * 4],
    "all_to_all": [256 * 128 * 4],
    "all_reduce": [64 * 128 * 4, 0],  # the last one: 7 elements in the first step, one more in each
}


def main(folder: Path) -> None:
    """Run three steps under the profiler and write this rank's trace."""
    import torch
    import torch._inductor.config as inductor
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc
    from torch.distributed.device_mesh import init_device_mesh
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    inductor.cpp.enable_kernel_profile = True
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = columns = dist.group.WORLD
    if world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
        rows, columns = mesh.get_group("row"), mesh.get_group("column")
    size = dist.get_world_size(rows)

    @torch.compile
    def work(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        a = fc.all_gather_tensor(first, 0, rows)
        b = fc.all_gather_tensor(second, 0, rows)
        hidden = torch.nn.functional.gelu(x @ a) @ b
        kept = fc.reduce_scatter_tensor(hidden, "sum", 0, rows)
        moved = fc.all_to_all_single(hidden, None, None, rows)
        return kept.sum() + fc.all_reduce(moved[:64], "sum", columns).sum()

    x, first, second = torch.randn(256, 256), torch.randn(256 // size, 256), torch.randn(256 // size, 128)
    with torch.no_grad():
        for _ in range(3):
            work(x, first, second)
        with profile(record_shapes=True, activities=[ProfilerActivity.CPU]) as profiler:
            for step in range(STEPS):
                with record_function(f"loopopt.step#{FIRST_STEP + step}"):
                    work(x, first, second)
                    dist.all_reduce(torch.ones(7 + step))
                    dist.all_gather_into_tensor(torch.empty(2 * world), torch.ones(2))
                    if rank == 0:  # the others wait for it at the next step's first collective
                        torch.mm(x, x)
    path = folder / f"rank{rank}.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    data: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    data.update(host_name="host-a", traceName=path.name)
    with gzip.GzipFile(f"{path}.gz", "wb", mtime=0) as file:
        file.write(json.dumps(data, separators=(",", ":")).encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
