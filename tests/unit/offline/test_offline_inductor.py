"""The profile for Inductor's own estimator: what PyTorch reads out of it is what the table says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopopt.offline.inductor import ACCURACY, Profile, profile
from loopopt.offline.tablefile import TableFile, json_text
from loopopt.timing import CollectiveCurve, Duration, Regime, TimingTable, compute_key
from loopopt.traces import ProcessGroup

MIB = 1 << 20


def curve(kind: str, group: str, size: int, dtype: str = "float32", scale: float = 1.0) -> CollectiveCurve:
    """20 us of latency and 1 us per KiB, with a dent."""
    sizes = (4096, MIB, 16 * MIB)
    times = (25.0 * scale, 1044.0 * scale, 12_000.0 * scale)
    return CollectiveCurve(kind, group, size, sizes, tuple(Duration(9, t, 1.0) for t in times), dtype)


TABLE = TimingTable(
    collectives=(
        curve("all_gather", "dp", 4),
        curve("all_gather", "dp", 4, "bfloat16", 1.5),
        curve("reduce_scatter", "dp", 4),
        curve("all_reduce", "tp", 2, ""),
        curve("all_to_all", "dp", 4),
        curve("broadcast", "dp", 4),
        curve("all_reduce", "unknown", 3),
    ),
    compute={
        compute_key("aten::mm", [[512, 256], [256, 64]], "bfloat16"): Duration(9, 70.0, 1.0),
        compute_key("aten::bmm", [[4, 512, 256], [4, 256, 64]], "float32"): Duration(9, 71.0, 1.0),
        compute_key("aten::addmm", [[64], [512, 256], [256, 64]], "float32"): Duration(9, 72.0, 1.0),
        compute_key("aten::convolution", [[8, 3, 32, 32], [16, 3, 3, 3], [16]], "float32"): Duration(9, 73.0, 1.0),
        compute_key("aten::_scaled_mm", [[16, 16], [16, 16]], "float8_e4m3fn"): Duration(9, 74.0, 1.0),
        compute_key("aten::_scaled_dot_product_flash_attention", [[2, 8, 128, 64]] * 3, "float16"): Duration(1, 75, 0),
    },
    fingerprint={"world_size": "4"},
    regions={"## Call CompiledFxGraph x ##": Duration(1, 5.0, 0.0)},
)
FILE = TableFile(
    TABLE,
    groups=(
        ProcessGroup("dp", "", 4, (0, 1, 2, 3)),
        ProcessGroup("tp", "", 2, (0, 2)),
        ProcessGroup("t1", "", 2, (1, 3)),
    ),
)


def test_what_the_estimator_cannot_express_is_said() -> None:
    """Kinds it does not ask for, groups of unknown ranks, types it has no name for, compiled regions."""
    notes = "\n".join(profile(FILE).notes)
    for word in ("broadcast", "all_reduce on group unknown", "float8_e4m3fn (1)", "1 compiled regions"):
        assert word in notes
    assert len(profile(FILE).notes) == 4


def test_without_group_ranks_the_world_is_still_known() -> None:
    """A job's table tells how many ranks there are: a group of that size is all of them."""
    made = profile(TableFile(TABLE))
    assert {tuple(g["ranks"]) for g in made.content["distributedInfo"]["pg_config"]} == {(0, 1, 2, 3)}
    assert "all_reduce on group tp of 2" in "\n".join(made.notes)


def test_a_table_without_anything_gives_an_empty_profile() -> None:
    """Nothing is made up."""
    made = profile(TableFile(TimingTable()))
    assert (made.content["traceEvents"], made.notes) == ([], ())


# ------------------------------------------------------------ with torch


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="needs torch (extra `agent`)")


@pytest.fixture
def groups(torch: Any) -> Iterator[dict[tuple[int, ...], str]]:
    """Ranks -> name of a process group of a job of four that is not there; this process is rank 0."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        found = {(0, 1, 2, 3): dist.group.WORLD.group_name}
        for ranks in ((0, 2), (1, 3), (0, 1)):
            found[ranks] = dist.new_group(list(ranks)).group_name if 0 in ranks else ""
        yield found
    finally:
        dist.destroy_process_group()


def estimator(made: Profile, folder: Path) -> Any:
    from torch._inductor.fx_passes.profile_guided_estimation import ProfileGuidedEstimator

    path = folder / "profile.json"
    path.write_text(json_text(made.content))
    return ProfileGuidedEstimator(str(path))


class Graph:
    """A graph with operators on tensors without storage."""

    def __init__(self) -> None:
        import torch.fx

        self.graph = torch.fx.Graph()

    def tensor(self, *shape: int, dtype: Any, transposed: tuple[int, int] | None = None) -> Any:
        import torch

        stored = list(shape)
        if transposed:
            a, b = transposed
            stored[a], stored[b] = stored[b], stored[a]
        node = self.graph.placeholder(f"t{len(list(self.graph.nodes))}")
        value = torch.empty(stored, dtype=dtype, device="meta")
        node.meta["val"] = value.transpose(*transposed) if transposed else value
        return node

    def call(self, target: Any, *args: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Any:
        import torch

        node = self.graph.call_function(target, args)
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        return node


@pytest.mark.torch
def test_torch_answers_with_our_medians_for_collectives(torch: Any, groups: Any, tmp_path: Path) -> None:
    """At measured sizes exactly, in between and beyond within the accuracy promised; by ranks and element type."""
    estimate = estimator(profile(FILE), tmp_path)
    c10d = torch.ops._c10d_functional
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    world, pair = (0, 1, 2, 3), (0, 2)

    def asked(kind: str, ranks: tuple[int, ...], message: int, dtype: str) -> float | None:
        graph, size, name = Graph(), len(ranks), groups[ranks]
        elements = message // types[dtype].itemsize
        kinds = {
            "all_gather": (c10d.all_gather_into_tensor.default, (size, name), elements // size, elements),
            "reduce_scatter": (c10d.reduce_scatter_tensor.default, ("sum", size, name), elements, elements // size),
            "all_reduce": (c10d.all_reduce.default, ("sum", name), elements, elements),
            "all_to_all": (
                c10d.all_to_all_single.default,
                ([elements // size] * size, [elements // size] * size, name),
                elements,
                elements,
            ),
        }
        target, more, taken, given = kinds[kind]
        source = graph.tensor(taken, dtype=types[dtype])
        answer = estimate(graph.call(target, source, *more, shape=(given,), dtype=types[dtype]), None)
        return None if answer is None else answer * 1e3

    for kind, ranks, dtype, known in (
        ("all_gather", world, "float32", TABLE.collectives[0]),
        ("all_gather", world, "bfloat16", TABLE.collectives[1]),
        ("reduce_scatter", world, "float32", TABLE.collectives[2]),
        ("all_reduce", pair, "float32", TABLE.collectives[3]),
        ("all_reduce", pair, "float16", TABLE.collectives[3]),
        ("all_to_all", world, "float32", TABLE.collectives[4]),
    ):
        for size, duration in zip(known.sizes, known.durations, strict=True):
            assert asked(kind, ranks, size, dtype) == pytest.approx(duration.median_us, rel=1e-6), (kind, dtype)
        for size in (64, 1024, 8192, 100_000, 300_000, 3 * MIB, 9 * MIB, 64 * MIB, 1 << 30):
            assert asked(kind, ranks, size, dtype) == pytest.approx(known.at(size), rel=2 * ACCURACY), (kind, size)
    # A group of the same dimension of the mesh that the profile has too, and one that nobody measured.
    assert asked("all_reduce", (0, 1), 4096, "float32") is None
    assert asked("reduce_scatter", world, 4096, "bfloat16") is None


@pytest.mark.torch
def test_bucketed_sizes_are_answered_too(torch: Any, groups: Any, tmp_path: Path) -> None:
    """The scheduler asks for the size a bucket would have; what latency alone is, the estimator never says."""
    estimate = estimator(profile(FILE), tmp_path)
    graph = Graph()
    source = graph.tensor(256, dtype=torch.float32)
    target = torch.ops._c10d_functional.all_gather_into_tensor.default
    node = graph.call(target, source, 4, groups[(0, 1, 2, 3)], shape=(1024,), dtype=torch.float32)
    known = TABLE.collectives[0]
    assert estimate(node, 2 * MIB) * 1e3 == pytest.approx(known.at(2 * MIB), rel=2 * ACCURACY)
    assert estimate(node, 0) is None


@pytest.mark.torch
def test_torch_answers_with_our_medians_for_operators(torch: Any, tmp_path: Path) -> None:
    """Row-major and transposed matrices; attention on (batch, tokens, heads, width) too; nothing for other shapes."""
    estimate = estimator(profile(FILE), tmp_path)
    aten, bf16, f32, f16 = torch.ops.aten, torch.bfloat16, torch.float32, torch.float16
    graph = Graph()

    def asked(target: Any, *inputs: Any, shape: tuple[int, ...], dtype: Any) -> float | None:
        answer = estimate(graph.call(target, *inputs, shape=shape, dtype=dtype), None)
        return None if answer is None else round(answer * 1e3, 6)

    for flip_a in (None, (0, 1)):
        for flip_b in (None, (0, 1)):
            a = graph.tensor(512, 256, dtype=bf16, transposed=flip_a)
            b = graph.tensor(256, 64, dtype=bf16, transposed=flip_b)
            assert asked(aten.mm.default, a, b, shape=(512, 64), dtype=bf16) == 70.0
    a, b = graph.tensor(4, 512, 256, dtype=f32), graph.tensor(4, 256, 64, dtype=f32, transposed=(1, 2))
    assert asked(aten.bmm.default, a, b, shape=(4, 512, 64), dtype=f32) == 71.0
    bias, a, b = graph.tensor(64, dtype=f32), graph.tensor(512, 256, dtype=f32), graph.tensor(256, 64, dtype=f32)
    assert asked(aten.addmm.default, bias, a, b, shape=(512, 64), dtype=f32) == 72.0
    x, w, bias = (graph.tensor(*s, dtype=f32) for s in ((8, 3, 32, 32), (16, 3, 3, 3), (16,)))
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert asked(aten.convolution.default, x, w, bias, *rest, shape=(8, 16, 32, 32), dtype=f32) == 73.0
    for flip in (None, (1, 2)):
        qkv = [graph.tensor(2, 8, 128, 64, dtype=f16, transposed=flip) for _ in range(3)]
        target = aten._scaled_dot_product_flash_attention.default
        assert asked(target, *qkv, shape=(2, 8, 128, 64), dtype=f16) == 75.0
    a, b = graph.tensor(512, 256, dtype=f32), graph.tensor(256, 64, dtype=f32)
    assert asked(aten.mm.default, a, b, shape=(512, 64), dtype=f32) is None


@pytest.mark.torch
def test_a_duration_of_one_layout_beats_the_one_of_all(torch: Any, tmp_path: Path) -> None:
    """Where the traces told the strides, those runs alone count."""
    shapes = [[512, 256], [256, 64]]
    compute = {
        compute_key("aten::mm", shapes, "float32"): Duration(9, 70.0, 1.0),
        compute_key("aten::mm", shapes, "float32", [[256, 1], [1, 256]]): Duration(5, 50.0, 1.0),
    }
    estimate = estimator(profile(TableFile(TimingTable(compute=compute))), tmp_path)
    graph = Graph()
    a = graph.tensor(512, 256, dtype=torch.float32)
    for flip, expected in ((None, 0.07), ((0, 1), 0.05)):
        b = graph.tensor(256, 64, dtype=torch.float32, transposed=flip)
        node = graph.call(torch.ops.aten.mm.default, a, b, shape=(512, 64), dtype=torch.float32)
        assert estimate(node, None) == expected


@pytest.mark.torch
def test_a_curve_with_fitted_lines_is_followed(torch: Any, tmp_path: Path) -> None:
    """A change of protocol at some size makes a kink; enough sizes are written around it."""
    regimes = (Regime(1024, 10.0, 1e-4, 0.1, 50), Regime(MIB, 400.0, 2e-5, 0.1, 50))
    known = replace(curve("all_reduce", "dp", 4), regimes=regimes)
    table = TimingTable((known,), fingerprint={"world_size": "4"})
    data = estimator(profile(TableFile(table, groups=FILE.groups[:1])), tmp_path).profile
    for size in (4096, 50_000, 900_000, 2 * MIB, 40 * MIB):
        answer = data.lookup_collective("all_reduce", (0, 1, 2, 3), size // 4, "Float")
        assert answer is not None
        assert answer[0] * 1e3 == pytest.approx(known.at(size), rel=2 * ACCURACY), size


@pytest.mark.torch
def test_the_overlap_scheduler_takes_the_profile(
    torch: Any, groups: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the setting a person would use, on a traced graph with a collective and a matrix product."""
    from torch._inductor import config
    from torch._inductor import utils as inductor_utils
    from torch._inductor.fx_passes import overlap_scheduling
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _runtime_estimation

    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile(FILE).content))
    name = groups[(0, 1, 2, 3)]

    def step(a: Any, b: Any, x: Any) -> Any:
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(x, 4, name)
        product = torch.mm(a, b)
        return product, torch.ops._c10d_functional.wait_tensor(gathered)

    seen: dict[Any, float | None] = {}

    def look(self: Any) -> Any:
        for node in self.graph.nodes:
            if node.op == "call_function":
                seen[node.target] = self.custom_runtime_estimation(node, None)
        return self.gm

    monkeypatch.setattr(overlap_scheduling.OverlapScheduler, "run", look)
    for module in (inductor_utils, _runtime_estimation):
        # Without a GPU the scheduler would ask triton for the bandwidth of its memory.
        monkeypatch.setattr(module, "get_gpu_dram_gbps", lambda: 100)
    tensors = [torch.empty(s, dtype=torch.bfloat16) for s in ((512, 256), (256, 64), (131072,))]
    made = make_fx(step, tracing_mode="fake")(*tensors)
    with config.patch({"aten_distributed_optimizations.profile_guided_estimations_profile_path": str(path)}):
        overlap_scheduling.schedule_overlap_bucketing_from_inductor_configs(made)
    c10d = torch.ops._c10d_functional
    assert seen[torch.ops.aten.mm.default] == pytest.approx(0.07)
    gather = seen.get(c10d.all_gather_into_tensor.default) or seen.get(c10d.all_gather_into_tensor_out.default)
    assert gather == pytest.approx(TABLE.collectives[1].at(MIB) / 1e3)
