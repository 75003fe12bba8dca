"""Files of what was measured: JSON, checked where it is read, replaced at once where it is written.

They are kept from one process to the next and are never needed: what is missing, damaged or of
another version is measured again, or done without. Imports the standard library.
"""

import json
import logging
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["machine", "read", "write"]

T = TypeVar("T")

log = logging.getLogger(__name__)


@cache
def _cpu() -> str:
    """Model of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def machine() -> list[Any]:
    """Return what tells this machine from others: architecture, processor, number of cores."""
    return [platform.machine(), _cpu(), os.cpu_count()]


def read(path: Path, schema: int, checked: Callable[[Any], T]) -> T | None:
    """Return what a file holds, or None; a damaged one is reported and ignored.

    Parameters
    ----------
    path : Path
        The file.
    schema : int
        Version of the file that is understood; others are ignored.
    checked : callable
        Returns what the JSON stands for, or raises `ValueError`, `TypeError`, `KeyError` or
        `AttributeError`.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return checked(found) if found["schema"] == schema else None
    except FileNotFoundError:
        return None
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        log.warning("%s is damaged and ignored: %r", path, error)
        return None


def write(path: Path, content: Any) -> bool:
    """Replace a file at once; return whether it could be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)
        return False
    return True
