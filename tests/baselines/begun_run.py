"""Runs from file to file that were killed in the middle, in a form that can be moved.

``data/begun_run_*.tar.xz`` hold the folders of such runs: source, what was stored of the result,
and scratch folder. `place` unpacks one elsewhere, as if it had been begun there with the versions
of now: paths, times and versions in its records are replaced, and the digests of the records made
again.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_bigfft
from dask_bigfft import events
from dask_bigfft.testing import dying_runs
from dask_bigfft.testing.clusters import started

#: Elements of the source, and of a block.
LENGTH = 256
BLOCK = 16

#: Event at which a run is killed: in the middle of the first round, or while the result is stored.
KILLED_AT = {"between": 600, "storing": 1040}

#: The arguments of the run.
ARGUMENTS: dict[str, Any] = {"kind": "fft", "block_size": BLOCK * 16, "rounds": [16, 16]}

SETTINGS = {"bigfft.planner.whole-axis-floor": 1, "bigfft.kernel": "scipy"}

#: What a record says of its folder, in place of paths: a record has no such text otherwise.
FOLDER = "@folder@"


def values() -> np.ndarray:
    """Return the values of the source."""
    rng = np.random.default_rng(53)
    return rng.standard_normal(LENGTH) + 1j * rng.standard_normal(LENGTH)


class Interrupted(BaseException):
    """Interruption of a run."""


def store_source(folder: Path) -> None:
    """Make the source."""
    import zarr

    zarr.create_array(folder / "in.zarr", data=values(), chunks=(BLOCK,))


def begin_and_kill(folder: Path, when: str) -> None:
    """Make the source, and begin a run in a process that is killed by a signal."""
    store_source(folder)
    arguments = {
        **ARGUMENTS,
        "scratch": str(folder / "scratch"),
        "settings": SETTINGS,
    }
    process = started(
        dying_runs.run_and_die,
        KILLED_AT[when],
        1,
        str(folder / "in.zarr"),
        str(folder / "out.zarr"),
        **arguments,
    )
    process.join(120)
    if process.exitcode is None or process.exitcode >= 0:
        raise RuntimeError(f"the run was not killed, its status is {process.exitcode}")


def begin_and_interrupt(folder: Path) -> None:
    """Make the source, and begin a run that an error interrupts."""
    store_source(folder)
    count = itertools.count(1)

    def interrupt(name: str, numbers: Any) -> None:
        if next(count) == KILLED_AT["between"]:
            raise Interrupted

    events.add_sink(interrupt)
    try:
        with contextlib.suppress(Interrupted):
            resume(folder)
    finally:
        events.remove_sink(interrupt)


def resume(folder: Path) -> Any:
    """Resume the run of a folder, or begin one; return its report."""
    with dask.config.set({**SETTINGS, "scheduler": "sync"}):
        return dask_bigfft.run(
            folder / "in.zarr",
            folder / "out.zarr",
            scratch=folder / "scratch",
            resume=True,
            **ARGUMENTS,
        )


# --- moving ---------------------------------------------------------------------------------


def digest_of(record: dict[str, Any]) -> str:
    """Return the digest that a record of the scratch folder has of itself."""
    content = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def pack(folder: Path, archive: Path) -> None:
    """Write the folder of a begun run to an archive."""
    with tarfile.open(archive, "w:xz") as packed:
        for path in sorted(folder.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            if path.is_dir():
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o755
                packed.addfile(entry)
                continue
            content = path.read_bytes()
            if path.suffix == ".json":
                content = content.replace(str(folder).encode(), FOLDER.encode())
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def place(archive: Path, folder: Path) -> None:
    """Unpack a begun run into an empty folder."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
    for path in folder.rglob("*.json"):
        text = path.read_text()
        path.write_text(text.replace(FOLDER, str(folder)))
    scratch = folder / "scratch"
    record = json.loads((scratch / "run.json").read_text())
    for name, numbers in record["source"]["files"].items():
        time = numbers[1]
        os.utime(folder / "in.zarr" / name, ns=(time, time))
    record["versions"] = {name: version_now(name) for name in record["versions"]}
    before = record["digest"]
    after = digest_of(record)
    (scratch / "run.json").write_text(json.dumps({**record, "digest": after}))
    for path in scratch.rglob("done-*.json"):
        rewrite(path, before, after)
    for path in scratch.glob(f"*{before}*"):
        path.rename(path.with_name(path.name.replace(before, after)))


def rewrite(path: Path, before: str, after: str) -> None:
    """Replace the digest of the run in the record of a block."""
    record = json.loads(path.read_text().replace(before, after))
    record["digest"] = digest_of(record)
    path.write_text(json.dumps(record))


def version_now(name: str) -> str:
    """Return the installed version of a package, as runs record it."""
    return dask_bigfft.__version__ if name == "dask_bigfft" else importlib.metadata.version(name)
