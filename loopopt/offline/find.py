"""Patterns -> trace files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

from loopopt.errors import UnsupportedError, UsageError

SUFFIXES = (".json", ".json.gz", ".json.zst")
"""What is taken for a trace in a folder. Files named outright may be called anything."""

_WILD = frozenset("*?[")


def find_traces(patterns: Sequence[str]) -> list[str]:
    """Files that the patterns name, each once, in the order of the patterns and by name within one.

    Args:
        patterns: files, folders (searched through), globs (`**` goes into folders), fsspec URLs of any of these.

    Raises:
        UsageError: a pattern matches no file, or a URL cannot be listed.
        UnsupportedError: a URL, and fsspec or its driver for that scheme is not installed.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        paths = list(_remote(pattern) if "://" in pattern else _local(pattern))
        if not paths:
            kind = "no trace (.json, .json.gz, .json.zst) in or under it"
            raise UsageError(f"{pattern}: {kind if os.path.isdir(pattern) else 'no such file'}")
        for path in paths:
            found.setdefault(path if "://" in path else os.path.realpath(path), path)
    return list(found.values())


def _local(pattern: str) -> Iterator[str]:
    if os.path.isdir(pattern):
        yield from _in_folder(pattern)
    elif os.path.exists(pattern):
        yield pattern
    elif _WILD & set(pattern):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isdir(path):
                yield from _in_folder(path)
            else:
                yield path


def _in_folder(folder: str) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        yield from (os.path.join(where, name) for name in sorted(files) if _is_trace(name))


def _is_trace(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not os.path.basename(name).startswith(".")


def _remote(pattern: str) -> Iterator[str]:
    try:
        import fsspec
    except ImportError as err:
        raise UnsupportedError(f"{pattern}: URLs need fsspec: pip install fsspec") from err
    try:
        system, path = fsspec.core.url_to_fs(pattern)
        yield from (str(system.unstrip_protocol(name)) for name in _listed(system, path))
    except ImportError as err:
        raise UnsupportedError(f"{pattern}: {err}") from err
    except (OSError, ValueError) as err:
        raise UsageError(f"{pattern}: cannot be listed: {err}") from err


def _listed(system: Any, path: str) -> list[str]:
    if _WILD & set(path):
        matches = sorted(system.glob(path))
        return [name for name in matches if not system.isdir(name)]
    if system.isdir(path):
        return sorted(name for name in system.find(path) if _is_trace(name))
    return [path] if system.exists(path) else []
