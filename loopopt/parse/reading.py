"""The uncompressed text of a trace file, piece by piece, with a bound on its size.

Compression (gzip, zstd, none) is told from the content, not from the name: files get renamed. Names with a scheme
("s3://bucket/trace.json.gz") are opened with fsspec, which is imported only then.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol, cast

from loopopt.errors import TraceError

MAX_BYTES = 4 * 1024**3
"""Default bound on the uncompressed size."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a frame to be skipped; byte 0 is 0x50 to 0x5f."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Text:
    """Uncompressed text, read once from front to back."""

    def __init__(self, path: str, stream: _Stream, kind: str, max_bytes: int) -> None:
        self._path = path
        self._stream = stream
        self._kind = kind
        self._max_bytes = max_bytes
        self._done = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end.

        Raises:
            TraceError: the stream is torn or damaged, cannot be read, or is longer than allowed.
        """
        try:
            part = self._stream.read(size)
        except EOFError as err:
            raise TraceError(self._path, f"the {self._kind} stream is torn; expected more data", self._done) from err
        except (gzip.BadGzipFile, zlib.error) as err:
            raise TraceError(self._path, f"the gzip stream is damaged ({err})", self._done) from err
        except TraceError:
            raise
        except OSError as err:
            raise TraceError(self._path, f"cannot be read: {err.strerror or err}", self._done) from err
        except Exception as err:
            what = f"the {self._kind} stream is damaged" if self._kind else "cannot be read"
            raise TraceError(self._path, f"{what} ({type(err).__name__}: {err})", self._done) from err
        self._done += len(part)
        if self._done > self._max_bytes:
            verb = "unpacks to" if self._kind else "has"
            raise TraceError(
                self._path, f"{verb} more than the {self._max_bytes} bytes allowed for a trace", self._done
            )
        return part


@contextmanager
def open_text(path: str, max_bytes: int = MAX_BYTES) -> Iterator[Text]:
    """Open a trace file for reading.

    Args:
        path: regular file, or an address that fsspec understands.
        max_bytes: longer text is refused, also when it is small on disk.

    Raises:
        TraceError: not a readable regular file, too large, or a compression this Python cannot read.
    """
    with _open(path) as file:
        size = _size(path, file)
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == _GZIP_MAGIC:
            yield Text(path, gzip.GzipFile(fileobj=file), "gzip", max_bytes)
        elif magic == _ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPABLE and 0x50 <= magic[0] < 0x60):
            yield Text(path, _zstd(path, file), "zstd", max_bytes)
        elif size is not None and size > max_bytes:
            raise TraceError(path, f"{size} bytes, more than the {max_bytes} bytes allowed for a trace")
        else:
            yield Text(path, file, "", max_bytes)


@contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
    try:
        file = _open_remote(path) if "://" in path else _open_local(path)
    except OSError as err:
        raise TraceError(path, f"cannot be read: {err.strerror or err}") from err
    with file:
        yield file


def _open_local(path: str) -> IO[bytes]:
    return open(path, "rb", opener=_open_without_blocking)


def _open_remote(path: str) -> IO[bytes]:
    try:
        import fsspec
    except ImportError as err:
        raise TraceError(path, "reading from an address needs fsspec (pip install fsspec)") from err
    try:
        return cast("IO[bytes]", fsspec.open(path, "rb").open())
    except OSError:
        raise
    except Exception as err:  # every file system raises errors of its own
        raise TraceError(path, f"cannot be read: {type(err).__name__}: {err}") from err


def _open_without_blocking(path: str, flags: int) -> int:
    # Opening a pipe for reading would wait for a writer that may never come.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _size(path: str, file: IO[bytes]) -> int | None:
    """Bytes on disk; None if only reading tells."""
    try:
        info = os.fstat(file.fileno())
    except (OSError, AttributeError, io.UnsupportedOperation):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise TraceError(path, "not a regular file; expected a trace written by torch.profiler")
    return info.st_size


def _zstd(path: str, file: IO[bytes]) -> _Stream:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            import backports.zstd as zstd
    except ImportError as err:
        raise TraceError(path, "reading a zstd file needs Python 3.14 or `pip install backports.zstd`") from err
    return cast("_Stream", zstd.ZstdFile(file))
