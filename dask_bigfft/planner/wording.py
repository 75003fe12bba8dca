"""Numbers with units, lines and tables, and the speeds of a machine in words.

Pure: imports this room.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields

from dask_bigfft.planner.profile import Profile

#: Columns of a line.
WIDTH = 100

#: What stays on one line: short parentheses, C and W with their values, numbers with units.
_GLUED = re.compile(
    r"\b[CW] = \d+( \([^()]*\))?|moves [\d.]+ \w+|\d+ (blocks?|groups?)\b|fan-in \d+"
    r"|\([^()]{1,70}\)"
)


def human_bytes(nbytes: float) -> str:
    """Return bytes in a unit that keeps the number short.

    >>> human_bytes(0), human_bytes(1536), human_bytes(3 << 30)
    ('0 B', '1.50 KiB', '3.00 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(nbytes) < 1023.995 or unit == "PiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{_short(nbytes)} {unit}"


def enough_bytes(nbytes: int) -> str:
    """Return bytes rounded up, so that a limit of this text has room for them.

    >>> enough_bytes(5), enough_bytes(1025), enough_bytes((360 << 20) + 1), enough_bytes(3 << 30)
    ('5 B', '1.01 KiB', '361 MiB', '3.00 GiB')
    """
    unit = 1 << 10 * min(5, max(0, nbytes.bit_length() - 1) // 10)
    whole = -(-nbytes // unit)
    step = unit if whole >= 100 or unit == 1 else unit / (10 if whole >= 10 else 100)
    return human_bytes(math.ceil(nbytes / step) * step)


def human_count(count: float, unit: str = "") -> str:
    """Return a number with a decimal prefix.

    >>> human_count(999), human_count(2.5e9, "flop")
    ('999', '2.50 Gflop')
    """
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = min(max(0, int(math.log10(max(count, 1)) // 3)), len(prefixes) - 1)
    number = f"{count:.0f}" if power == 0 else _short(count / 1000**power)
    return f"{number} {prefixes[power]}{unit}".rstrip()


def human_seconds(seconds: float) -> str:
    """Return a time in a unit that keeps the number short.

    >>> human_seconds(0.0123), human_seconds(2.5), human_seconds(200), human_seconds(7300)
    ('12.3 ms', '2.50 s', '3 min 20 s', '2 h 01 min')
    """
    if seconds < 1e-3:
        return f"{_short(seconds * 1e6)} us"
    if seconds < 0.9995:
        return f"{_short(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{_short(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _short(number: float) -> str:
    """Return three digits of a number below a thousand or so."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def wrapped(text: str, indent: str, first: str = "") -> Iterator[str]:
    """Return lines of at most `WIDTH` columns, never broken inside what belongs together."""
    glued = re.sub(_GLUED, lambda found: found[0].replace(" ", "\u00a0"), text)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=first or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (line.replace("\u00a0", " ") for line in lines)


def speed_rows(profile: Profile) -> list[tuple[str, str]]:
    """Return the prices of a profile as names and values with units."""

    def text(name: str, value: float) -> str:
        if name == "together":
            return f"{100 * value:.0f} %"
        if name.endswith("flops"):
            return human_count(value, "FLOP/s")
        return human_seconds(value) if value < 1 else f"{value / 1e9:.3g} GB/s"

    rows = [
        (f.name.replace("_", " "), text(f.name, getattr(profile, f.name)))
        for f in fields(profile)
        if isinstance(getattr(profile, f.name), float)
    ]
    for library in profile.libraries:
        flops = human_count(library.flops, "FLOP/s"), human_count(library.large_flops, "FLOP/s")
        rows.append(
            (f"{library.name}, {library.dtype}", "{} in tiles, {} in large blocks".format(*flops))
        )
    for device in profile.devices:
        rows.append(
            (
                device.name,
                f"bus {text('h2d', device.h2d)} and {text('d2h', device.d2h)} at "
                f"once, FFTs {text('flops', device.flops)}",
            )
        )
    pairs = profile.peers
    return rows + [(f"device {p.source} to {p.target}", text("speed", p.speed)) for p in pairs]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Right-aligned numbers after a name, which takes a line of its own where it is long."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = min(widths[0], WIDTH - 4 - sum(widths[1:]) - 2 * len(widths[1:]))
    for name, *numbers in rows:
        *before, last = textwrap.wrap(name, room, break_on_hyphens=False) or [""]
        yield from (f"    {line}" for line in before)
        cells = "  ".join(n.rjust(w) for n, w in zip(numbers, widths[1:], strict=True))
        yield f"    {last.ljust(room)}  {cells}"
