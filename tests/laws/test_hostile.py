"""Every public function takes a hostile argument or refuses it by its name, and soon."""

import inspect
import os
import random
import re
import time
from datetime import date

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft, signal, transposed_index
from dask_bigfft.errors import BigFFTError
from dask_bigfft.planning.arguments import Extras

xr = pytest.importorskip("xarray")

COUNT = 5_000 if os.environ.get("BIGFFT_SLOW") else 400

X = da.ones((8, 8), chunks=4)
LINE = da.ones(16, chunks=4)
FIELD = xr.DataArray(np.ones((8, 8)), dims=("y", "x"), coords={"y": np.arange(8.0)})
EXTRAS = dict.fromkeys(Extras.__annotations__)
OPTIONS = dict.fromkeys(("chunks", "memory_limit", "kernel"))

#: Other names under which an error may speak of an argument: its parts, and those it clashes with.
ALIASES = {
    "array": ("a", "dim"),
    "x": ("a", "in1"),
    "in1": ("a",),
    "in2": ("a",),
    "y": ("a",),
    "f": ("a", "x"),
    "nperseg": ("noverlap", "window", "nfft"),
    "noverlap": ("nperseg",),
    "nfft": ("nperseg",),
    "dim": ("axes", "axis", "order", "digits"),
    "s": ("axes", "rounds"),
    "axes": ("s", "a"),
    "n": ("rounds", "digits", "a"),
    "axis": ("a", "nperseg"),
    "kind": ("axes", "s", "axis", "a"),
    "order": ("digits", "n", "axes", "a"),
    "mode": ("in1", "in2"),
    "type": ("orthogonalize", "a"),
    "variant": ("rounds",),
    "device": ("kernel", "a"),
    "window": ("nperseg",),
}


def hostile():
    """Values that some argument of some function cannot take."""
    ragged = np.empty(2, object)
    ragged[:] = [[1], [2, 3]]
    return [
        None,
        True,
        False,
        0,
        -1,
        3,
        2**31,
        2**63,
        10**30,
        -0.0,
        0.5,
        float("nan"),
        float("inf"),
        1j,
        b"full",
        "",
        "same",
        "no",
        "a\0b",
        "natural",
        "é",
        "1 GiB",
        "-3",
        [],
        (),
        {},
        set(),
        [1, 2],
        (0, 0),
        [-1, None],
        [[1, 2], [3]],
        {0: 1},
        {"y": 2},
        {1, 2},
        ["y"],
        ("y", "x"),
        range(2),
        iter([0]),
        (i for i in (0, 1)),
        slice(2),
        Ellipsis,
        NotImplemented,
        int,
        len,
        lambda x: x,
        object(),
        date(2020, 1, 1),
        np.array(3),
        np.array([]),
        np.array([0, 1]),
        np.array([0.5]),
        np.array(["a"]),
        np.array([None]),
        ragged,
        np.zeros(2, "i4,f8"),
        np.datetime64("2020"),
        np.timedelta64(3, "s"),
        np.float32(2),
        np.int8(1),
        np.bool_(True),
        np.str_("x"),
        np.nan,
        np.dtype("f8"),
        np.ma.masked,
        np.random.default_rng(0),
        da.ones(3),
        da.ones((2, 2)),
        xr.DataArray([1.0, 2.0]),
        type("Odd", (), {})(),
    ]


def calls(folder):
    """Functions with arguments that work, by the names of those that are made hostile."""
    found = []
    for name in fft.__all__:
        function = getattr(fft, name)
        names = list(inspect.signature(function).parameters)
        if name in ("fftfreq", "rfftfreq"):
            base = {"n": 8, "d": 1.0, "chunks": "auto", "order": None, "digits": None}
        elif name in ("fftshift", "ifftshift"):
            base = {"x": X, "axes": None}
        elif name == "frequencies_of":
            base = {"spectrum": fft.fftn(X), "axis": 0, "d": 1.0}
        elif name == "next_fast_len":
            base = {"target": 8, "real": False}
        elif "overwrite_x" in names and "type" in names:
            base = {
                "x": X,
                "type": 2,
                "norm": None,
                "overwrite_x": False,
                "workers": None,
                "orthogonalize": None,
                **OPTIONS,
            }
            base |= {"s": None, "axes": None} if name.endswith("n") else {"n": None, "axis": -1}
        else:
            one = not name.endswith(("2", "n"))
            base = {"a": X, "norm": None, "out": None, **EXTRAS}
            base |= {"n": None, "axis": -1} if one else {"s": None, "axes": (0, 1)}
        found.append((function, base))
    for name in signal.__all__:
        function = getattr(signal, name)
        names = list(inspect.signature(function).parameters.values())
        arrays = {"x": X, "y": X, "f": X, "in1": X, "in2": X}
        if name in ("welch", "csd"):
            arrays = {"x": LINE, "y": LINE}
        base = {p.name: arrays.get(p.name, p.default) for p in names if p.kind is not p.VAR_KEYWORD}
        if any(p.kind is p.VAR_KEYWORD for p in names):
            base |= OPTIONS
        if name in ("welch", "csd"):
            base["nperseg"] = 4
        found.append((function, base))
    from dask_bigfft import xarray as bx

    for name in ("fft", "ifft", "rfft", "irfft"):
        base = {
            "array": FIELD,
            "dim": "x",
            "norm": None,
            "order": None,
            "kernel": None,
            "digits": None,
            "rounds": None,
            "verify": None,
        }
        base |= {"shift": False} if name in ("fft", "rfft") else {}
        found.append((getattr(bx, name), base))
    found += [(bx.fftshift, {"array": FIELD, "dim": "x"}), (bx.ifftshift, {"array": FIELD})]
    found.append((transposed_index, {"n": 8, "real": False, "digits": None}))
    found.append(
        (
            dask_bigfft.plan,
            {
                "a": X,
                "kind": "fftn",
                "n": None,
                "s": None,
                "axis": None,
                "axes": None,
                "norm": None,
                **EXTRAS,
            },
        )
    )
    source = folder / "source.npy"
    np.save(source, np.ones((8, 8)))
    base = {
        name: p.default
        for name, p in inspect.signature(dask_bigfft.run).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    }
    base |= {"source": source, "destination": folder / "out.zarr"}
    found.append((dask_bigfft.run, base | dict.fromkeys(EXTRAS) | {"overwrite": True}))
    found.append((dask_bigfft.report, {"y": X}))
    found.append((dask_bigfft.calibrate, {"client": "no", "path": None, "nbytes": 0, "repeat": 3}))
    return found


def _is_named(name, text):
    """Whether a message names an argument; a single letter may be a word, so it wants quotes."""
    quoted = f"`{name}" in text or f"'{name}'" in text
    return quoted or (name not in ("a", "n", "s") and re.search(rf"\b{name}\b", text))


def outcome(function, base, name, value):
    """What is wrong with the answer to a hostile argument; None where nothing is."""
    arguments = {**base, name: value}
    started = time.perf_counter()
    try:
        function(**{k: v for k, v in arguments.items() if v is not inspect.Parameter.empty})
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        text = str(error)
        names = (name, *ALIASES.get(name, ()))
        if function is dask_bigfft.calibrate:
            names = ("client", "path", "nbytes", "repeat")
        if isinstance(error, RuntimeError) and not isinstance(error, BigFFTError):
            return f"{type(error).__name__}: {text}"
        if not any(_is_named(one, text) for one in names):
            return f"{type(error).__name__}: {text}"
    except Exception as error:  # whatever else it is, nobody would know what to change
        return f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    return f"{seconds:.1f} s" if seconds > 5 else None


@pytest.mark.filterwarnings("ignore")
def test_errors_name_the_hostile_argument(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, found = random.Random(int(os.environ.get("BIGFFT_SEED", "27"))), {}
    with dask.config.set({"bigfft.kernel": "scipy", "bigfft.wisdom.directory": str(tmp_path)}):
        functions = calls(tmp_path)
        for _ in range(COUNT):
            function, base = rng.choice(functions)
            name = rng.choice([name for name in base if name not in ("stream", "planner")])
            value = rng.choice(hostile())
            wrong = outcome(function, base, name, value)
            if wrong is not None:
                shown = f"{function.__module__}.{function.__name__}({name}={value!r:.60})"
                found[shown] = wrong[:160]
    assert not found, "\n".join(f"{call}: {wrong}" for call, wrong in sorted(found.items()))
