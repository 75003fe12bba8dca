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
from dask_bigfft.api.arguments import Extras, Options
from dask_bigfft.errors import BigFFTError
from dask_bigfft.signal.arguments import SignalOptions

xr = pytest.importorskip("xarray")

COUNT = 5_000 if os.environ.get("BIGFFT_SLOW") else 400

X = da.ones((8, 8), chunks=4)
LINE = da.ones(16, chunks=4)
FIELD = xr.DataArray(np.ones((8, 8)), dims=("y", "x"), coords={"y": np.arange(8.0)})
EXTRAS = tuple(Extras.__annotations__)

#: Other names under which an error may speak of an argument: its parts, and those it clashes with.
ALIASES = {
    "array": ("a", "dim"),
    "x": ("a", "in1", "nperseg", "fft_mode", "axis", "kernel"),
    "win": ("x", "S", "fft_mode"),
    "hop": ("win", "S"),
    "mfft": ("S", "memory_limit"),
    "fft_mode": ("scale_to", "S"),
    "S": ("a", "f_axis"),
    "f_axis": ("S", "t_axis"),
    "t_axis": ("S",),
    "k0": ("k1",),
    "p0": ("p1",),
    "m": ("endpoint",),
    "in1": ("a",),
    "in2": ("a",),
    "y": ("a", "fft_mode"),
    "f": ("a", "x"),
    "nperseg": ("noverlap", "window", "nfft"),
    "noverlap": ("nperseg",),
    "nfft": ("nperseg", "memory_limit"),
    "dim": ("axes", "axis", "order", "digits"),
    "s": ("axes", "rounds"),
    "axes": ("s", "a"),
    "n": ("rounds", "digits", "a"),
    "axis": ("a", "nperseg", "x"),
    "kind": ("axes", "s", "axis", "a"),
    "order": ("digits", "n", "axes", "a"),
    "mode": ("in1", "in2"),
    "type": ("orthogonalize", "a"),
    "variant": ("rounds",),
    "device": ("kernel", "a"),
    "window": ("nperseg",),
    "band": ("transfer",),
    "band_index": ("band",),
}


def hostile():
    """Return values that some argument of some function cannot take."""
    is_uneven = np.empty(2, object)
    is_uneven[:] = [[1], [2, 3]]
    single = [None, True, False, slice(2), Ellipsis, NotImplemented, int, len, lambda x: x]
    numbers = [0, -1, 3, LONG, 2**63, 10**30, -0.0, 0.5, float("nan"), float("inf"), 1j]
    texts = [b"full", "", "same", "no", "a\0b", "natural", "é", "1 GiB", "-3", date(2020, 1, 1)]
    lists = [[], (), [1, 2], (0, 0), [-1, None], [[1, 2], [3]], ["y"], ("y", "x"), range(2)]
    others = [{}, set(), {0: 1}, {"y": 2}, {1, 2}, iter([0]), (i for i in (0, 1)), object()]
    arrays = [np.array(values) for values in (3, [], [0, 1], [0.5], ["a"], [None])]
    arrays += [is_uneven, np.zeros(2, "i4,f8"), np.ma.masked, da.ones(3), da.ones((2, 2))]
    scalars = [np.datetime64("2020"), np.timedelta64(3, "s"), np.float32(2), np.int8(1), np.nan]
    scalars += [np.bool_(True), np.str_("x"), np.dtype("f8"), np.random.default_rng(0)]
    odd = [xr.DataArray([1.0, 2.0]), type("Odd", (), {})()]
    return [*single, *numbers, *texts, *lists, *others, *arrays, *scalars, *odd]


#: A length that axes may have, with a lazy result.
LONG = 2**31

#: Values of arguments without a default, by their names.
NEEDED = {**dict.fromkeys(("a", "x", "y", "z", "f", "in1", "in2"), X), "array": FIELD}
NEEDED |= {"spectrum": fft.fftn(X), "n": 8, "target": 8, "transfer": np.ones(1)}
NEEDED |= {"win": np.ones(4), "hop": 2, "fs": 1.0, "S": da.ones((3, 8), chunks=4), "fn": 0.5}
NEEDED |= {"cutoff": 0.1, "band": (0.1, 0.2), "distance": 0.5, "num": 4, "factor": 2}
NEEDED |= {"kernel": np.ones((3, 3))}


def arguments(function, more=(), **given):
    """Return arguments that work, by name: defaults, `more` that are None, and those given."""
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    defaults = {p.name: NEEDED[p.name] if p.default is p.empty else p.default for p in named}
    return defaults | dict.fromkeys(more) | given


def calls(folder):
    """Return functions with arguments that work, by the names of those that are made hostile."""
    bx = dask_bigfft.xarray
    options = Options.__annotations__
    signal_options = SignalOptions.__annotations__
    cosines = [name for name in fft.__all__ if name.strip("in") in ("dct", "dst")]
    cases = [
        (f, arguments(f, options if f.__name__ in cosines else ()))
        for f in (getattr(fft, name) for name in fft.__all__)
    ]
    segments = {"welch": {"x": LINE, "nperseg": 4}, "csd": {"x": LINE, "y": LINE, "nperseg": 4}}
    segments["plan_segments"] = segments["welch"]
    segments |= {"coherence": segments["csd"], "transfer_function": segments["csd"]}
    segments["fill_gaps"] = {"band": 0.2, "iterations": 2}
    segments["convolve_masked"] = {"kernel": np.ones((3, 3))}
    for name in signal.__all__:
        function = getattr(signal, name)
        more = signal_options if name == "plan_segments" else ()
        cases.append((function, arguments(function, more, **segments.get(name, {}))))
    extras = ("order", "kernel", "digits", "rounds", "verify")
    names = ("fft", "ifft", "rfft", "irfft")
    cases += [(f, arguments(f, extras, dim="x")) for f in (getattr(bx, name) for name in names)]
    cases += [(f, arguments(f, dim="x")) for f in (bx.fftshift, bx.ifftshift)]
    source = folder / "source.npy"
    np.save(source, np.ones((8, 8)))
    NEEDED.update(source=source, destination=folder / "out.zarr")
    cases += [
        (transposed_index, arguments(transposed_index)),
        (dask_bigfft.plan, arguments(dask_bigfft.plan, EXTRAS)),
        (dask_bigfft.run, arguments(dask_bigfft.run, EXTRAS, overwrite=True)),
        (dask_bigfft.report, {"y": X}),
        (
            dask_bigfft.calibrate,
            {
                "client": "no",
                "path": None,
                "nbytes": 0,
                "repeat": 3,
            },
        ),
    ]
    return cases


def _is_named(name, text):
    """Whether a message names an argument; a single letter may be a word, so it wants quotes."""
    quoted = f"`{name}" in text or f"'{name}'" in text
    return quoted or (name not in ("a", "n", "s") and re.search(rf"\b{name}\b", text))


def outcome(
    function,
    base,
    name,
    value,
):
    """What is wrong with the answer to a hostile argument; None where nothing is."""
    started = time.perf_counter()
    try:
        function(**{**base, name: value})
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        text = str(error)
        names = (name, *ALIASES.get(name, ()))
        if function is dask_bigfft.calibrate:
            names = ("client", "path", "nbytes", "repeat")
        if isinstance(error, RuntimeError) and not isinstance(error, BigFFTError):
            return f"{type(error).__name__}: {text}"
        if not any(_is_named(alias, text) for alias in names):
            return f"{type(error).__name__}: {text}"
    except Exception as error:  # whatever else it is, nobody would know what to change
        return f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    return f"{seconds:.1f} s" if seconds > 5 else None


@pytest.mark.filterwarnings("ignore")
def test_errors_name_the_hostile_argument(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(int(os.environ.get("BIGFFT_SEED", "27")))
    failures = {}
    with dask.config.set({"bigfft.kernel": "scipy", "bigfft.wisdom.directory": str(tmp_path)}):
        functions = calls(tmp_path)
        for _ in range(COUNT):
            function, base = rng.choice(functions)
            name = rng.choice([name for name in base if name not in ("stream", "planner")])
            value = rng.choice(hostile())
            if name == "n" and type(value) is int and value == LONG and "dim" in base:
                continue  # coordinates of as many frequencies would be in memory
            wrong = outcome(function, base, name, value)
            if wrong is not None:
                shown = f"{function.__module__}.{function.__name__}({name}={value!r:.60})"
                failures[shown] = wrong[:160]
    assert not failures, "\n".join(f"{call}: {wrong}" for call, wrong in sorted(failures.items()))
