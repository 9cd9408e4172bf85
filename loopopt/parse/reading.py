"""Bytes of a trace file, plain or gzip, with a bound on their number."""

from __future__ import annotations

import gzip
import os
import stat
import zlib

from loopopt.errors import TraceError

MAX_BYTES = 4 * 1024**3
"""Default bound on the uncompressed size."""

_CHUNK = 1 << 22
_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"


def read_text(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The JSON text of a trace file.

    Compression is told from the content, not from the name: files get renamed.

    Args:
        path: regular file.
        max_bytes: larger text is refused, also when it is small on disk.

    Raises:
        TraceError: not a readable regular file, empty, too large, or a gzip stream that is torn or damaged.
    """
    try:
        with open(path, "rb", opener=_open_without_blocking) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise TraceError(path, "not a regular file; expected a trace written by torch.profiler")
            magic = file.read(2)
            file.seek(0)
            if magic == _GZIP_MAGIC:
                text = _inflate(path, gzip.GzipFile(fileobj=file), max_bytes)
            else:
                if info.st_size > max_bytes:
                    raise TraceError(path, f"{info.st_size} bytes, more than the {max_bytes} bytes allowed for a trace")
                text = file.read()
    except OSError as err:
        raise TraceError(path, f"cannot be read: {err.strerror or err}") from err
    text = text.removeprefix(_UTF8_MARK)
    if not text.strip():
        raise TraceError(path, "empty; expected a JSON object or array (was it copied before it was written?)", 0)
    return text


def _open_without_blocking(path: str, flags: int) -> int:
    # Opening a pipe for reading would wait for a writer that may never come.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _inflate(path: str, stream: gzip.GzipFile, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    try:
        while part := stream.read(_CHUNK):
            parts.append(part)
            done += len(part)
            if done > max_bytes:
                raise TraceError(path, f"unpacks to more than the {max_bytes} bytes allowed for a trace", done)
    except EOFError as err:
        raise TraceError(path, "the gzip stream is torn; expected more data", done) from err
    except (gzip.BadGzipFile, zlib.error) as err:
        raise TraceError(path, f"the gzip stream is damaged ({err})", done) from err
    return b"".join(parts)
