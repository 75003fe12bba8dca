"""Profiles as files: where they lie, which one holds, and writing them.

A profile that was measured here lies in the folder `bigfft.wisdom.directory`; the setting
`bigfft.planner.profile` names any other. What is damaged, or was measured on another machine, is
reported once and ignored. Imports `planner`, `config` and `files`.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dask_bigfft import config, files
from dask_bigfft.planner.profile import DEFAULT, SCHEMA, Profile

log = logging.getLogger(__name__)

#: Files that were read: when they were written, and what they hold.
_read: dict[Path, tuple[int, Profile | None]] = {}


def cluster_place(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return a short name of a cluster: of its hosts and their threads, not of its ports.

    >>> cluster_place([{"host": "a", "nthreads": 2}, {"host": "b", "nthreads": 2}])
    '2f4e00787d'
    """
    hosts = sorted((str(worker.get("host")), int(worker.get("nthreads", 1))) for worker in workers)
    return hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:10]


def profile_path(place: str = "") -> Path:
    """Return where the profile of this machine lies, or that of a cluster."""
    folder = Path(config.get("bigfft.wisdom.directory"))
    return folder / (f"profile-{place}.json" if place else "profile.json")


def save_profile(profile: Profile, path: Path) -> bool:
    """Write a profile with the name of this machine; return whether that could be done."""
    content = json.loads(profile.to_json())
    return files.write(path, {**content, "machine": files.machine()})


def _checked(path: Path, anywhere: bool) -> Profile | None:
    def check(found: Any) -> Profile | None:
        if not anywhere and found["machine"] != files.machine():
            log.warning("%s is of another machine and ignored: %s", path, found["machine"])
            return None
        return Profile.from_json(json.dumps(found))

    return files.read(path, SCHEMA, check)


def _from_file(path: Path, anywhere: bool) -> Profile | None:
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        return None
    known = _read.get(path)
    if known is None or known[0] != written:
        known = _read[path] = written, _checked(path, anywhere)
        if anywhere and known[1] is None:  # somebody wants it, and may not know its version
            log.warning(
                "the profile %s cannot be used, `dask-bigfft calibrate --output FILE` "
                "writes one of version %d: plans are made for a common machine",
                path,
                SCHEMA,
            )
    return known[1]


def known_profile(*places: str) -> Profile:
    """Return the first profile that there is: that of the settings, those of places, the default.

    Parameters
    ----------
    *places : str
        As `cluster_place` names them; an empty one is this machine.
    """
    named = config.get("bigfft.planner.profile")
    if named is not None:
        found = _from_file(Path(named), anywhere=True)
        if found is None and not Path(named).is_file():
            log.warning("the profile %s does not exist: plans are made for a common machine", named)
        return DEFAULT if found is None else found
    for place in places:
        found = _from_file(profile_path(place), anywhere=False)
        if found is not None:
            return found
    return DEFAULT
