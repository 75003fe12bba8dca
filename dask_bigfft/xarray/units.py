"""Spellings of one unit, as UDUNITS and so the CF conventions allow them."""

#: Prefixes of symbols and of names.
_PREFIXES = {
    "": "",
    "k": "kilo",
    "h": "hecto",
    "c": "centi",
    "m": "milli",
    "u": "micro",
    "n": "nano",
}

#: Units that take prefixes: their symbols and names without a plural.
_WITH_PREFIX = {
    "m": ("meter", "metre"),
    "s": ("second", "sec"),
    "g": ("gram", "gramme"),
    "Hz": ("hertz",),
    "K": ("kelvin",),
    "Pa": ("pascal",),
    "rad": ("radian",),
}

#: Other spellings of units without prefixes.
_OTHER = {
    "min": ("minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "hPa": ("mbar", "millibar", "millibars"),
    "um": ("micron", "microns", "µm", "μm"),
    "degree": ("deg", "degs", "°", "arcdeg", "arc_degree", "arc_degrees"),
}

#: What names of degrees end with.
_DIRECTIONS = ("", "_north", "_n", "n", "_east", "_e", "e", "_true", "_t", "t")


def _symbols_by_name() -> dict[str, str]:
    """Return the symbol of each name in small letters."""
    symbols = {}
    for symbol, names in _WITH_PREFIX.items():
        for short, long in _PREFIXES.items():
            for name in names:
                symbols[f"{long}{name}"] = f"{short}{symbol}"
                symbols[f"{long}{name}s"] = f"{short}{symbol}"
    for symbol, names in _OTHER.items():
        symbols |= dict.fromkeys(names, symbol)
    for direction in _DIRECTIONS:
        symbols[f"degree{direction}"] = "degree"
        symbols[f"degrees{direction}"] = "degree"
    return symbols


_SYMBOLS = _symbols_by_name()


def unit_symbol(unit: str) -> str:
    """Return the symbol of a unit for each of its spellings; unknown units are returned unchanged.

    Names may have capital letters, symbols are exact.

    >>> [unit_symbol(text) for text in ("degrees_north", "degree_E", "Metres", "seconds", "mm")]
    ['degree', 'degree', 'm', 's', 'mm']
    """
    text = unit.strip()
    return _SYMBOLS.get(text.lower(), text)


def same_unit(first: str, second: str) -> bool:
    """Return True if two texts are spellings of one unit.

    >>> same_unit("km", "kilometers"), same_unit("degrees_north", "m")
    (True, False)
    """
    return unit_symbol(first) == unit_symbol(second)
