"""Microseconds and shares as people read them; "-" for what was not measured."""

from __future__ import annotations


def seconds(duration_us: float | None) -> str:
    """A duration in the unit that fits.

    >>> seconds(12.34), seconds(1_234.5), seconds(912_345.0), seconds(3_210_000.0), seconds(None)
    ('12.3 us', '1.23 ms', '912 ms', '3.21 s', '-')
    """
    if duration_us is None:
        return "-"
    size = abs(duration_us)
    if size >= 1e6:
        return f"{_three_digits(duration_us / 1e6)} s"
    if size >= 1e3:
        return f"{_three_digits(duration_us / 1e3)} ms"
    return f"{_three_digits(duration_us)} us"


def percent(share: float | None) -> str:
    """A share with its sign.

    >>> percent(0.2031), percent(-0.004), percent(None)
    ('+20.3 %', '-0.4 %', '-')
    """
    return "-" if share is None else f"{share * 100:+.1f} %"


def share(value: float | None) -> str:
    """A share without a sign.

    >>> share(0.2031), share(1.0), share(None)
    ('20.3 %', '100.0 %', '-')
    """
    return "-" if value is None else f"{value * 100:.1f} %"


def data(size_bytes: float | None) -> str:
    """Bytes in the decimal unit that fits, as bandwidths are in decimal units too.

    >>> data(512), data(67_108_864), data(3.2e9), data(None)
    ('512 B', '67.1 MB', '3.20 GB', '-')
    """
    if size_bytes is None:
        return "-"
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size_bytes) >= scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def bandwidth(gbps: float | None) -> str:
    """A bandwidth from gigabytes (1e9) a second.

    >>> bandwidth(312.4), bandwidth(0.0123), bandwidth(None)
    ('312 GB/s', '12.3 MB/s', '-')
    """
    return "-" if gbps is None else f"{data(gbps * 1e9)}/s"


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}" if value else "0"
