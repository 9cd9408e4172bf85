"""Keeping the trace directory within its size."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopopt.errors import StoreError

_LEAVING: Final = ".leaving-"
"""Prefix of a window on its way out: renamed first, so that nobody reads half a window."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What `prune_traces` did.

    Attributes:
        removed: names of the window directories deleted, oldest first.
        freed_bytes: their size.
        kept_bytes: size of the window directories that stay.
    """

    removed: tuple[str, ...]
    freed_bytes: int
    kept_bytes: int


def prune_traces(directory: Path, max_bytes: int, keep: int) -> PruneResult:
    """Delete whole window directories, oldest first, until the rest fits.

    The newest `keep` windows always stay, whatever their size (one may be being written). Files
    and links that lie beside the window directories are neither counted nor touched. Windows that
    appear, grow or vanish meanwhile do no harm.

    Args:
        directory: holds one directory per window; may be missing.
        max_bytes: most the windows may take together.
        keep: windows that are never deleted.

    Raises:
        StoreError: a window that should go cannot be deleted (it is named); the others were dealt with.
    """
    windows: list[tuple[int, str, int]] = []
    failures: list[str] = []
    for name in _names(directory):
        path = directory / name
        if name.startswith(_LEAVING):
            _delete(path, failures)  # left behind by a process that died here
            continue
        try:
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode):
            windows.append((found.st_mtime_ns, name, _size(path)))
    windows.sort()
    total = sum(size for _, _, size in windows)
    removed: list[str] = []
    freed = 0
    for _, name, size in windows[: max(0, len(windows) - max(keep, 0))]:
        if total - freed <= max_bytes:
            break
        leaving = directory / (_LEAVING + name)
        try:
            (directory / name).rename(leaving)
        except FileNotFoundError:
            freed += size  # somebody else deleted it
            continue
        except OSError as err:
            failures.append(f"{directory / name}: {err.strerror}")
            continue
        if _delete(leaving, failures):
            removed.append(name)
            freed += size
    if failures:
        raise StoreError(f"cannot delete old traces ({'; '.join(failures)}); check the directory's permissions")
    return PruneResult(tuple(removed), freed, total - freed)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as err:
        raise StoreError(f"{directory}: {err.strerror}; check the trace directory") from err


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):  # does not follow links, skips what vanishes
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _delete(path: Path, failures: list[str]) -> bool:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except OSError as err:
        failures.append(f"{path}: {err.strerror}")
        return False
    return True
