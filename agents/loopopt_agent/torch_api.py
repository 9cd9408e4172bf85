"""The one door to private PyTorch API. Everything here may be missing in another release.

Each feature has a probe; `probes()` says "ok" or why not, and whoever uses a feature asks first. A feature
that is missing means observe-only mode and a message, never an exception in the training loop.
Written against PyTorch 2.13; the notes say which behaviour of that release makes each piece necessary.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from loopopt.errors import UnsupportedError
from loopopt.graphs import Collective
from loopopt.plans import Knobs

_DIST = "torch._inductor.config"
_OVERLAP = "torch._inductor.fx_passes.overlap_scheduling"

_KNOB_TO_SETTING = {
    "collective_bucketing": "collective_bucketing",
    "pre_bucketing": "pre_bucketing_fsdp_collectives",
    "bucket_mode": "bucket_mode",
    "bucket_cap_mb": "pre_bucketing_fsdp_collectives_bucket_cap_mb",
    "max_compute_pre_fetch": "max_compute_pre_fetch",
    "max_in_flight_gb": "max_in_flight_gb",
    "max_coll_distance": "max_coll_distance",
    "compute_overlap_multipler": "compute_overlap_multipler",
    "max_memory_increase_gb": "max_memory_increase_gb",
    "max_memory_increase_ratio": "max_memory_increase_ratio",
    "bucket_exposed_first": "bucket_exposed_first",
    "enable_fusion_regions": "enable_fusion_regions",
}


_BUCKET_MODES = ("default", "custom_ops", "custom_ops_multidtype", "coalesced")


class SchedulingTimeout(Exception):  # noqa: N818  (raised asynchronously into the pass; it is an event, not a bug)
    """The overlap scheduler ran longer than it may."""


# ---------------------------------------------------------------- probes


def _attribute(module: str, name: str) -> str:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as err:
        return f"missing in torch {torch.__version__}: {module}.{name} ({err})"
    return "ok"


_PROBES: dict[str, tuple[tuple[str, str], ...]] = {
    "overlap_scheduler": (
        (_DIST, "aten_distributed_optimizations.enable_overlap_scheduling"),
        (_OVERLAP, "schedule_overlap_bucketing_from_inductor_configs"),
    ),
    "estimation_hook": ((_DIST, "aten_distributed_optimizations.custom_runtime_estimation"),),
    "estimation_alignment": (
        (_OVERLAP, "OverlapScheduler._align_compute_nodes_runtime_estimations_across_all_distributed_ranks"),
    ),
    "compile_guard": (("torch._inductor.compile_fx", "_compile_fx_inner"),),
    "cache_key_tag": (("torch.compiler.config", "cache_key_tag"),),
    "dynamo_reset": (("torch._dynamo", "reset"),),
    "optimizer_hook": (("torch.optim.optimizer", "register_optimizer_step_post_hook"),),
    "default_store": (("torch.distributed.distributed_c10d", "_get_default_store"),),
    "profiler": (
        ("torch.profiler", "profile"),
        ("torch.autograd", "_profiler_enabled"),
        ("torch.autograd.profiler", "profile._prepare_trace"),
    ),
}

_NEEDED_TO_OPTIMIZE = (
    "overlap_scheduler",
    "estimation_hook",
    "estimation_alignment",
    "compile_guard",
    "cache_key_tag",
    "dynamo_reset",
    "default_store",
)


def probes() -> dict[str, str]:
    """Feature name -> "ok" or what is missing."""
    result = {}
    for feature, needs in _PROBES.items():
        answers = [_attribute(module, name) for module, name in needs]
        result[feature] = next((a for a in answers if a != "ok"), "ok")
    return result


def why_observe_only(found: dict[str, str]) -> str:
    """Empty if the closed loop can run, else the first missing feature in words."""
    return next((f"{name}: {found[name]}" for name in _NEEDED_TO_OPTIMIZE if found.get(name) != "ok"), "")


# ---------------------------------------------------------------- settings


def plan_settings(knobs: Knobs, estimate: Callable[..., float | None] | None) -> dict[str, Any]:
    """Inductor config patch of a plan; a setting this torch lacks is an `UnsupportedError` naming it."""
    options = torch._inductor.config.aten_distributed_optimizations
    prefix = "aten_distributed_optimizations."
    patch: dict[str, Any] = {prefix + "enable_overlap_scheduling": True, prefix + "insert_overlap_deps": True}
    if estimate is not None:
        patch[prefix + "custom_runtime_estimation"] = estimate
        # What the table does not know is answered by torch's roofline model: the same on every rank, unlike a
        # benchmark, and without a GPU.
        patch[prefix + "compute_estimator"] = "analytical"
        patch[prefix + "collective_estimator"] = "analytical"
    for name, value in asdict(knobs).items():
        setting = _KNOB_TO_SETTING.get(name)
        if setting is None or value is None:
            continue
        if not hasattr(options, setting):
            raise UnsupportedError(f"torch {torch.__version__} has no overlap setting {setting!r} (knob {name!r})")
        if name == "bucket_mode" and value not in _BUCKET_MODES:
            # The scheduler takes any text and falls back without a word: then the plan would not be what it says.
            raise UnsupportedError(f"bucket mode {value!r} is none of {', '.join(_BUCKET_MODES)}")
        patch[prefix + setting] = value
    return patch


@contextlib.contextmanager
def inductor_settings(patch: dict[str, Any]) -> Iterator[None]:
    """Inductor settings for the length of a `with`."""
    with torch._inductor.config.patch(patch):
        yield


def set_cache_key_tag(tag: str) -> str:
    """Make every compile cache forget (FX graph and AOTAutograd): returns the former tag.

    Their keys do not contain the estimates: without another tag, a recompile with new numbers is a cache hit
    and the scheduler is never asked (2.13).
    """
    former = str(torch.compiler.config.cache_key_tag)
    torch.compiler.config.cache_key_tag = tag
    return former


def reset_compiler() -> None:
    """Forget compiled code: the next call compiles again. Parameters and optimizer state are untouched."""
    torch._dynamo.reset()


# ---------------------------------------------------------------- the compile of one graph


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective in the order of the generated code."""

    op: str
    arguments: str


_CALL = re.compile(r"torch\.ops\._c10d_functional\.(?!wait_tensor)(\w+)(?:\.\w+)?\((.*)\)")


def collective_order(output_code: Any) -> tuple[CollectiveCall, ...]:
    """Collectives of a compiled graph in the order in which the generated code issues them.

    Raises:
        UnsupportedError: the artefact carries no source (another backend, or the C++ wrapper).
    """
    source = getattr(output_code, "source_code", None)
    if not isinstance(source, str) or not source:
        raise UnsupportedError("the compiled graph carries no generated Python code to read the collective order from")
    return tuple(CollectiveCall(m.group(1), m.group(2)) for m in _CALL.finditer(source))


def has_collectives(graph_module: Any) -> bool:
    """Whether the graph waits for at least one functional collective."""
    return bool(
        graph_module.graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.wait_tensor.default)
    )


def copy_graph_module(graph_module: Any) -> Any:
    """A copy whose graph can be changed while the original stays as it is (attributes are shared)."""
    import copy

    duplicate = torch.fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    duplicate.meta.update(graph_module.meta)
    return duplicate


@contextlib.contextmanager
def undoable_compile() -> Iterator[Callable[[], None]]:
    """Yields a function that takes back what a compile has left in the tracing context, before another is made.

    Inductor asserts that the output strides of a graph are noted only once.
    """
    context = torch._guards.TracingContext.try_get()
    strides = getattr(context, "output_strides", None)
    before = list(strides) if strides is not None else None

    def undo() -> None:
        if strides is not None and before is not None:
            strides[:] = before

    yield undo


InnerCompile = Callable[..., Any]


def install_compile_guard(guard: Callable[..., Any]) -> Callable[[], None]:
    """Route every graph Inductor compiles through `guard(original, gm, example_inputs, **kwargs)`.

    `compile_fx_inner` looks `_compile_fx_inner` up in its module at each call, after the AOTAutograd cache and
    before the FX-graph cache: forward, backward and inference graphs all pass here.

    Returns:
        A function that takes the guard out again.
    """
    module: Any = importlib.import_module("torch._inductor.compile_fx")
    original: InnerCompile = module._compile_fx_inner

    def guarded(gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return guard(original, gm, example_inputs, *args, **kwargs)

    module._compile_fx_inner = guarded

    def remove() -> None:
        if module._compile_fx_inner is guarded:
            module._compile_fx_inner = original

    return remove


@contextlib.contextmanager
def scheduling(host_gb_per_s: float, limit_s: float, own_pass: Callable[[Any], bool]) -> Iterator[None]:
    """Conditions under which the overlap scheduler runs for us, for the length of one compile.

    - Its alignment step is skipped. It would overwrite our numbers from an on-disk cache, and it gathers over
      the default group, where one rank that failed earlier leaves the others hanging. Our numbers need no
      alignment: every rank has the same table, and what the table lacks comes from a roofline model.
    - Without triton (CPU-only builds) its memory bandwidth query dies: a fixed host figure, the same on all
      ranks, takes its place.
    - It may not run for ever: after `limit_s` seconds `SchedulingTimeout` is raised inside it.
    - `own_pass` sees each graph before it, and may take its place: then it returns True.
    """
    overlap = importlib.import_module(_OVERLAP)
    inductor_utils = importlib.import_module("torch._inductor.utils")
    estimation = importlib.import_module("torch.utils._runtime_estimation")
    align = "_align_compute_nodes_runtime_estimations_across_all_distributed_ranks"
    saved: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        if hasattr(owner, name):
            saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    run_pass = overlap.schedule_overlap_bucketing_from_inductor_configs

    def limited(gm: Any) -> Any:
        with time_limit(limit_s):
            return gm if own_pass(gm) else run_pass(gm)

    replace(overlap, "schedule_overlap_bucketing_from_inductor_configs", limited)
    replace(overlap.OverlapScheduler, align, lambda self: None)
    if not _has_triton():
        for owner in (inductor_utils, estimation):
            replace(owner, "get_gpu_dram_gbps", lambda: host_gb_per_s)
            replace(owner, "get_device_tflops", lambda dtype: 0.05)
    try:
        yield
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `SchedulingTimeout` in this thread after `seconds` of pure Python work."""
    thread = threading.get_ident()
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SchedulingTimeout))

    watcher = threading.Thread(target=watch, name="loopopt-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


# ---------------------------------------------------------------- graph nodes

_COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    node = getattr(size, "node", None)
    if node is not None and node.has_hint():
        return int(node.hint)
    raise ValueError("size without a hint")


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        total = int(value.element_size())
        for size in value.shape:
            total *= _hint(size)
        return total
    if isinstance(value, (list, tuple)):
        return sum(_bytes(v) for v in value)
    return 0


def collective_node(node: Any) -> Collective | None:
    """The collective a node starts, without its `bucket_key`; None for other nodes, and where sizes are unknown."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "_c10d_functional":
        return None
    kind = _COLLECTIVES.get(target._schema.name.split("::")[1])
    if kind is None:
        return None
    given = _arguments(node)
    given.pop("out", None)
    group = given.get("group_name", "")
    if isinstance(group, torch.fx.Node):
        group = group.meta["val"].group_name
    sources = [n for n in torch.utils._pytree.tree_leaves(list(given.values())) if isinstance(n, torch.fx.Node)]
    try:
        input_bytes = sum(_bytes(n.meta.get("val")) for n in sources)
        output_bytes = _bytes(node.meta.get("val"))
    except ValueError:
        return None
    size: Any = torch.distributed.distributed_c10d._get_group_size_by_name(group)
    found = [t for n in sources for t in tensors(n.meta.get("val"))]
    dtype = str(found[0].dtype).removeprefix("torch.") if found else ""
    return Collective(kind, str(group), int(size), input_bytes, output_bytes, dtype)


def compute_node(node: Any) -> tuple[str, list[list[int]], str, list[list[int]]] | None:
    """(op as in traces, shapes of its tensor inputs, dtype of the first, their strides).

    None if it is not such a node. Strides are empty if one is not known.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    shapes: list[list[int]] = []
    strides: list[list[int]] = []
    dtype = ""
    for argument in torch.utils._pytree.tree_leaves([node.args, node.kwargs]):
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor):
            continue
        try:
            shapes.append([_hint(s) for s in value.shape])
        except ValueError:
            return None
        dtype = dtype or str(value.dtype).removeprefix("torch.")
        with contextlib.suppress(ValueError, RuntimeError):
            strides.append([_hint(s) for s in value.stride()])
    return (target._schema.name, shapes, dtype, strides if len(strides) == len(shapes) else []) if shapes else None


def tensors(value: Any) -> list[Any]:
    """The (fake) tensors in a node's value."""
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def tensor_bytes(value: Any) -> int:
    """Bytes of the tensors in a node's value; 0 if a size is unknown."""
    try:
        return _bytes(value)
    except ValueError:
        return 0


def is_wait(node: Any) -> bool:
    """Whether the node waits for a collective."""
    return node.target is torch.ops._c10d_functional.wait_tensor.default


def _schema(node: Any) -> Any:
    return getattr(node.target, "_schema", None)


def _arguments(node: Any) -> dict[str, Any]:
    """A node's arguments by the names its operator gives them."""
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def written_arguments(node: Any) -> list[Any]:
    """The nodes among a node's arguments whose memory it writes."""
    schema = _schema(node)
    if schema is None or not schema.is_mutable or is_wait(node):
        return []
    given = _arguments(node)
    written: list[Any] = []
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
            leaves = torch.utils._pytree.tree_leaves(given[argument.name])
            written += [v for v in leaves if isinstance(v, torch.fx.Node)]
    return written


def aliased_argument(node: Any) -> Any:
    """The argument whose memory a node's value shares (views, tuple items, waits); None for a value of its own."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    if is_wait(node) or getattr(node.target, "__name__", "") == "getitem":
        return node.args[0]
    schema = _schema(node)
    if schema is not None and schema.returns and any(r.alias_info is not None for r in schema.returns):
        written = written_arguments(node)
        return written[0] if written else node.args[0]
    return None


def is_view(node: Any) -> bool:
    """Whether a node costs nothing: it only looks at its argument's memory."""
    return aliased_argument(node) is not None and not written_arguments(node)


def has_other_effects(node: Any) -> bool:
    """Whether a node does more than compute its value or write an argument: it must keep its place among its like."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return True
    return _schema(node) is None and bool(node.is_impure())


def is_anchor(node: Any) -> bool:
    """Whether a node becomes a kernel of its own (a matmul, an attention): the compiler's count of such operators."""
    packet = getattr(node.target, "overloadpacket", None)
    registry = importlib.import_module("torch.utils.flop_counter").flop_registry
    return packet in registry


def bucket_key(node: Any) -> str:
    """Starts with the same key may be merged; "" if torch has no way to merge such a collective."""
    bucketing = importlib.import_module("torch._inductor.fx_passes.bucketing")
    try:
        key = bucketing.bucket_key(node)
    except (AttributeError, KeyError, TypeError, ValueError, AssertionError):
        return ""
    if key is None or len(node.users) != 1 or not is_wait(next(iter(node.users))):
        return ""
    return f"{bucketing.get_collective_type(node)}|{key}"


def merge_bucket(graph: Any, starts: Sequence[Any]) -> list[Any]:
    """Merge collectives into one by torch's own function for their kind; the nodes that took their place, in order.

    Raises:
        UnsupportedError: torch has none for this kind.
    """
    bucketing = importlib.import_module("torch._inductor.fx_passes.bucketing")
    if bucketing.is_all_gather_into_tensor(starts[0]):
        merge = bucketing.merge_all_gather_bucket
    elif bucketing.is_reduce_scatter_tensor(starts[0]):
        merge = bucketing.merge_reduce_scatter_bucket
    elif bucketing.is_all_reduce_tensor(starts[0]):
        merge = bucketing.merge_all_reduce_bucket
    else:
        raise UnsupportedError(f"torch {torch.__version__} cannot merge {starts[0].target}")
    members = list(starts)
    after = members[-1].next
    gone = {*members, *(next(iter(m.users)) for m in members)}
    while after in gone:
        after = after.next
    new, _ = merge(graph, members, insert_before=after)
    return list(new)


def add_ordering(graph: Any, pins: dict[Any, list[Any]]) -> None:
    """Make nodes depend on others that no data comes from, in a way that Inductor's scheduler keeps.

    Args:
        graph: FX graph in its final order.
        pins: node -> nodes before it.
    """
    control = importlib.import_module("torch._inductor.fx_passes.control_dependencies")
    ordered_set = importlib.import_module("torch.utils._ordered_set").OrderedSet
    control.preserve_node_ordering(graph, {node: ordered_set(before) for node, before in pins.items()})


# ---------------------------------------------------------------- distributed


def default_store() -> Any:
    """The c10d store the job made its process groups with."""
    return torch.distributed.distributed_c10d._get_default_store()


def own_connection(store: Any) -> Any:
    """A store for another thread than the one that uses `store`; the same one where PyTorch cannot clone one.

    A wait in one thread would hold up the other, and the training thread must not wait for us.
    """
    return store.clone() if hasattr(store, "clone") else store


def uses_gloo() -> bool:
    """Whether CPU tensors of the default group travel by gloo."""
    try:
        return "gloo" in str(torch.distributed.get_backend_config())
    except (RuntimeError, ValueError, AttributeError):
        return False


def replace_gloo_all_gather() -> Callable[[], None]:
    """Gather into a fresh tensor on CPU instead of through the coalesced path.

    With many all-gathers in flight, `_c10d_functional.all_gather_into_tensor` on gloo corrupts the heap (2.13
    and 2.14, ``malloc(): unaligned tcache chunk``); an overlapping schedule makes that likely. The out-variant
    takes another path and gives the same bytes.

    Returns:
        A function that restores torch's own implementation.
    """
    library = torch.library.Library("_c10d_functional", "IMPL")

    def gather(tensor: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
        out = tensor.new_empty([tensor.shape[0] * group_size, *tensor.shape[1:]])
        gathered: torch.Tensor = torch.ops._c10d_functional.all_gather_into_tensor_out(
            tensor, group_size, group_name, out=out
        )
        return gathered

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "overriding a kernel" is exactly what is meant
        library.impl("all_gather_into_tensor", gather, "CPU", allow_override=True)
    restore: Callable[[], None] = library._destroy
    return restore


# ---------------------------------------------------------------- steps and profiler


def on_optimizer_step(callback: Callable[[int], None]) -> Callable[[], None]:
    """Call `callback(id of the optimizer)` after every optimizer step in this process; returns the remover."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: callback(id(optimizer)))
    remove: Callable[[], None] = handle.remove
    return remove


def profiler_is_on() -> bool:
    """Whether any profiler runs in this process already."""
    return bool(torch.autograd._profiler_enabled())


def graphs_compiled() -> int:
    """Graphs Dynamo has compiled in this process so far."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    return int(counters["stats"].get("unique_graphs", 0))


def peak_memory_bytes() -> int:
    """Peak device memory of this rank; on CPU the peak resident set."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class TraceRecorder:
    """One Kineto trace of this rank: start, stop, write.

    `trace_only` (2.13) skips the post-processing of events into Python objects, which is what makes stopping a
    profiler slow; a release without it just takes longer.
    """

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        config = None
        with contextlib.suppress(TypeError):
            config = torch._C._profiler._ExperimentalConfig(trace_only=True)
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True, experimental_config=config)
        self._mark: Any = None

    def start(self) -> None:
        """Begin recording; raises RuntimeError if a profiler runs already."""
        self._profile.start()

    def mark(self, name: str) -> None:
        """End the open user annotation, if any, and begin one called `name`."""
        self.end_mark()
        self._mark = torch.autograd.profiler.record_function(name)
        self._mark.__enter__()

    def end_mark(self) -> None:
        """End the open user annotation."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def stop(self) -> None:
        """End recording; the events stay in memory until `write`."""
        self._profile.stop()

    def write(self, path: str) -> None:
        """Write Chrome trace JSON; may run in another thread."""
        self._profile.export_chrome_trace(path)


def before_any_profiler(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` before any profiler in this process starts recording; returns the remover.

    Two Kineto sessions cannot run at once: the second `start` raises, in the user's code. Ours has to be gone
    by then.
    """
    cls = torch.autograd.profiler.profile
    original = cls._prepare_trace

    def prepare(self: Any) -> Any:
        callback()
        return original(self)

    cls._prepare_trace = prepare

    def remove() -> None:
        if cls._prepare_trace is prepare:
            cls._prepare_trace = original

    return remove
