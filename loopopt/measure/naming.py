"""What the names in traces mean: kinds of collectives, waits, steps, element types."""

from __future__ import annotations

import re

COMMUNICATION_KERNEL = re.compile(r"nccl|rccl|msccl|oneccl", re.IGNORECASE)
"""NVIDIA, AMD, Microsoft and Intel collective libraries put their name into every kernel's."""

HOST_COLLECTIVE = re.compile(r"(gloo|mpi):", re.IGNORECASE)
"""Prefix of the event a CPU backend leaves on its own thread while a collective runs."""

LAUNCH = re.compile(r"(_?c10d_functional(?:_autograd)?|c10d)::(\w+)")
"""Operator that starts a collective (or waits for one: see `WAIT`)."""

WAIT = re.compile(r"(::|^)wait(_tensor)?_?$|\bWork(\.|::)wait\b|monitored_barrier", re.IGNORECASE)
"""Operator in which a thread is blocked until a collective is done."""

STEP = re.compile(r"(loopopt\.step|ProfilerStep)#(\d+)")
"""User annotation that covers one training step."""

AUTOGRAD = "autograd::engine::evaluate_function"
"""Prefix of the operator around every backward node: tells the threads of the autograd engine."""

COMPILED_REGION = re.compile(r"## Call CompiledFxGraph|Torch-Compiled Region|CompiledFunction|CompiledFxGraph")
"""Regions inside which generated code runs, whether or not its kernels leave events."""

UNKNOWN_KIND = "other"

# Order matters: "reduce_scatter" holds "reduce" and "scatter".
_KINDS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
)

SYNCHRONOUS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds that no rank can complete before the last one has arrived."""


def kind_of(name: str) -> str:
    """Kind of collective: "all_gather" for ``_allgather_base_``, ``ncclDevKernel_AllGather_RING_LL(...)``, ..."""
    # Template and argument lists of kernels would only add words.
    text = re.split(r"[(<]", name, maxsplit=1)[0].lower().replace("_", "")
    for word, kind in _KINDS:
        if word in text:
            return kind
    return UNKNOWN_KIND


_DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "c10::half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "c10::bfloat16": ("bfloat16", 2),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "long long": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "byte": ("uint8", 1),
    "unsigned short": ("uint16", 2),
    "unsigned int": ("uint32", 4),
    "unsigned long": ("uint64", 8),
    "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "c10::float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::float8_e5m2": ("float8_e5m2", 1),
    "c10::float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "c10::float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
}
_BY_TORCH_NAME = dict(_DTYPES.values())


def dtype_name(text: str) -> str:
    """PyTorch's name of an element type ("float32" for "float"), the text itself if it is not known."""
    found = _DTYPES.get(text.lower())
    return found[0] if found else text


def element_bytes(text: str) -> int:
    """Bytes of one element, 0 if the type is not known."""
    found = _DTYPES.get(text.lower())
    return found[1] if found else _BY_TORCH_NAME.get(text, 0)
