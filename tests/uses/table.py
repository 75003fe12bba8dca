"""Uses of a dask array that is a transform, and what each gives of NumPy's spectrum.

Each use is a function of a lazy spectrum that returns what `dask.compute` takes, and a function of
NumPy's spectrum that returns what must come out. Arrays are of the kind of this process. Those with
labels are xarray's, around such arrays.
"""

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import numpy as np
import xarray as xr
from kinds import da

import dask_bigfft.xarray
from dask_bigfft import fft

SHAPE = (24, 30)
CHUNKS = ((5, 7, 12), (8, 8, 14))

#: Real values, and the spectrum of their complex transform.
FIELD = np.random.default_rng(7).standard_normal(SHAPE)
SPECTRUM = np.fft.fft2(FIELD)

#: First places of the chunks along each axis.
STARTS = [np.cumsum((0, *along))[:-1] for along in CHUNKS]


class Use(NamedTuple):
    """Lazy use of a spectrum, and its result from NumPy's spectrum."""

    ours: Callable[[Any], Any]
    expected: Callable[[Any], Any]


def same(function: Callable[[Any], Any]) -> Use:
    """Return the use by an expression that NumPy understands, too."""
    return Use(function, function)


def field() -> Any:
    """Return the lazy field, of which both axes are in several chunks."""
    return da.from_array(FIELD, chunks=CHUNKS)


def add_place(block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
    return block + 10 * block_id[0] + block_id[1]


def places(s: np.ndarray) -> np.ndarray:
    result = s.copy()
    for i, along in enumerate(np.split(np.arange(SHAPE[0]), STARTS[0][1:])):
        for j, across in enumerate(np.split(np.arange(SHAPE[1]), STARTS[1][1:])):
            result[np.ix_(along, across)] += 10 * i + j
    return result


def neighbours(block: np.ndarray) -> np.ndarray:
    return block + np.roll(block, 1, 0) + np.roll(block, -1, 1)


def in_units_of_rows(block: np.ndarray) -> np.ndarray:
    return block / np.sqrt((abs(block) ** 2).sum(axis=-1, keepdims=True) + 1)


def replaced(y: Any) -> Any:
    y = y.copy()
    y[3, ::2] = 0
    return y


def delayed_total(y: Any) -> Any:
    """Return the sum of the blocks, by tasks of the user's own."""
    return dask.delayed(sum)([dask.delayed(np.sum)(block) for block in y.to_delayed().ravel()])


def from_delayed(y: Any) -> Any:
    """Return an array that the user puts together from the blocks."""
    blocks = y.to_delayed()
    shapes = [[(n, m) for m in y.chunks[1]] for n in y.chunks[0]]
    rows = [
        [
            da.from_delayed(block, shape, y.dtype)
            for block, shape in zip(row, row_shapes, strict=True)
        ]
        for row, row_shapes in zip(blocks, shapes, strict=True)
    ]
    return da.block(rows)


USES = {
    # readers
    "two readers": same(lambda y: (abs(y) ** 2, y.real)),
    "its input beside it": Use(lambda y: (y, field()), lambda s: (s, FIELD)),
    "two transforms of one array": Use(
        lambda y: (y, fft.ifft2(field())),
        lambda s: (s, np.fft.ifft2(FIELD)),
    ),
    "the same transform, built twice": Use(lambda y: (y, fft.fft2(field())), lambda s: (s, s)),
    "optimised first": Use(lambda y: dask.optimize(y)[0], lambda s: s),
    "pickled": Use(lambda y: pickle.loads(pickle.dumps(y)), lambda s: s),
    # block by block
    "map_blocks": Use(lambda y: y.map_blocks(np.conj), np.conj),
    "map_blocks that knows its block": Use(
        lambda y: y.rechunk(CHUNKS).map_blocks(add_place, dtype=y.dtype), places
    ),
    "map_overlap": Use(
        lambda y: y.map_overlap(neighbours, depth=1, boundary="periodic"), neighbours
    ),
    "blockwise": Use(
        lambda y: da.blockwise(np.multiply, "ij", y, "ij", y.conj(), "ij", dtype=y.dtype),
        lambda s: s * s.conj(),
    ),
    "gufunc": Use(
        lambda y: da.apply_gufunc(in_units_of_rows, "(i)->(i)", y.rechunk({1: -1})),
        in_units_of_rows,
    ),
    "ufuncs": same(lambda y: np.log1p(np.abs(y)) + np.cos(np.imag(y))),
    "where": Use(
        lambda y: da.where(abs(y) > 20, y, 0),
        lambda s: np.where(abs(s) > 20, s, 0),
    ),
    # reductions
    "sum along an axis": same(lambda y: y.sum(axis=1)),
    "sum of all, in pieces": Use(lambda y: y.sum(split_every=2), np.sum),
    "greatest, and where": same(lambda y: (abs(y).max(axis=0), abs(y).argmax(axis=1))),
    "deviation": same(lambda y: abs(y).std(axis=0)),
    "cumulative sum": same(lambda y: y.cumsum(axis=0)),
    "histogram": Use(
        lambda y: da.histogram(abs(y), bins=5, range=(0, 100))[0],
        lambda s: np.histogram(abs(s), bins=5, range=(0, 100))[0],
    ),
    "product with its own transpose": Use(
        lambda y: da.tensordot(y, y.conj(), axes=(1, 1)),
        lambda s: np.tensordot(s, s.conj(), axes=(1, 1)),
    ),
    # parts
    "steps": same(lambda y: y[3:20:4, 1::3]),
    "backwards": same(lambda y: y[::-1, 25:2:-3]),
    "one element and one row": same(lambda y: (y[5, 6], y[7])),
    "rows of a list": same(lambda y: y[[21, 0, 3, 3]]),
    "rows of a mask": same(lambda y: y[np.arange(SHAPE[0]) % 3 == 1]),
    "points": Use(
        lambda y: y.vindex[[0, 9, 23], [29, 3, 11]],
        lambda s: s[[0, 9, 23], [29, 3, 11]],
    ),
    "one block": Use(
        lambda y: y.rechunk(CHUNKS).blocks[1, 2],
        lambda s: s[5:12, 16:],
    ),
    "values that were replaced": same(replaced),
    # other shapes
    "other chunks, turned, in one row": Use(
        lambda y: y.rechunk((6, 6)).T.reshape(-1), lambda s: s.T.reshape(-1)
    ),
    "two spectra in one array": Use(
        lambda y: (da.concatenate([y, 2 * y]), da.stack([y, y.conj()], axis=1)),
        lambda s: (np.concatenate([s, 2 * s]), np.stack([s, s.conj()], axis=1)),
    ),
    "xarray around it": Use(
        lambda y: xr.DataArray(y, dims=("y", "x")).isel(y=slice(2, 9)).sum("x").data,
        lambda s: s[2:9].sum(axis=1),
    ),
    # transforms of results
    "filtered, and back": Use(
        lambda y: fft.ifft2(y * (abs(y) > 20)),
        lambda s: np.fft.ifft2(s * (abs(s) > 20)),
    ),
    "shifted, cut and back": Use(
        lambda y: fft.ifft2(fft.fftshift(y)[4:20, 5:25]),
        lambda s: np.fft.ifft2(np.fft.fftshift(s)[4:20, 5:25]),
    ),
    "power spectrum of what came back": Use(
        lambda y: abs(fft.rfft2(fft.ifft2(y).real)) ** 2,
        lambda s: abs(np.fft.rfft2(np.fft.ifft2(s).real)) ** 2,
    ),
    # tasks of the user
    "delayed blocks": Use(delayed_total, np.sum),
    "from delayed blocks": Use(from_delayed, lambda s: s),
    "a delayed function of all": Use(lambda y: dask.delayed(np.linalg.norm)(y), np.linalg.norm),
}


# --- arrays with labels -----------------------------------------------------------------------

#: The field with coordinates, and its spectrum.
LABELLED_FIELD = xr.DataArray(
    FIELD,
    {"y": np.arange(SHAPE[0]) / 4, "x": np.arange(SHAPE[1]) * 2.0},
    ("y", "x"),
    name="height",
)
LABELLED_SPECTRUM = dask_bigfft.xarray.fft(LABELLED_FIELD, ["y", "x"]).compute()


def labelled_field() -> xr.DataArray:
    """Return the labelled field in chunks."""
    return LABELLED_FIELD.chunk(y=CHUNKS[0], x=CHUNKS[1])


def places_along_p(*numbers: int) -> xr.DataArray:
    return xr.DataArray([*numbers], dims="p")


def signs(s: xr.DataArray) -> xr.DataArray:
    return s.assign_coords(sign=("freq_y", np.sign(s.freq_y.values)))


LABELLED_USES = {
    "reductions": same(lambda s: (abs(s).mean("freq_x"), abs(s).max("freq_y"), s.sum())),
    "labels of a range": same(
        lambda s: s.sortby(["freq_y", "freq_x"]).sel(freq_y=slice(-0.5, 0.5), freq_x=slice(0, None))
    ),
    "nearest labels": same(lambda s: s.sortby("freq_x").sel(freq_x=[0.01, 0.1], method="nearest")),
    "places and steps": same(lambda s: s.isel(freq_y=slice(20, 3, -4), freq_x=[3, 0, 7])),
    "points": same(
        lambda s: s.isel(
            freq_y=xr.DataArray([0, 9], dims="p"), freq_x=xr.DataArray([3, 5], dims="p")
        )
    ),
    "where": same(lambda s: s.where(abs(s) > 20, 0)),
    "a mask of coordinates": same(lambda s: s * (np.hypot(s.freq_y, s.freq_x) < 0.3)),
    "groups": same(lambda s: abs(signs(s)).groupby("sign").mean()),
    "coarsened": same(lambda s: abs(s).coarsen(freq_y=4, freq_x=5).mean()),
    "rolled": same(lambda s: s.roll(freq_x=3, roll_coords=True)),
    "stacked": same(lambda s: s.transpose("freq_x", "freq_y").stack(k=("freq_x", "freq_y"))),
    "concatenated": same(lambda s: xr.concat([s, s.conj()], "copy")),
    "a data set": same(lambda s: xr.Dataset({"s": s, "power": abs(s) ** 2}).sum("freq_y")),
    "a function of blocks": Use(
        lambda s: xr.apply_ufunc(np.conj, s, dask="parallelized", output_dtypes=[s.dtype]),
        np.conj,
    ),
    "other chunks": Use(lambda s: s.chunk(freq_y=6, freq_x=-1), lambda s: s),
    "persisted": Use(lambda s: s.persist(), lambda s: s),
    "filtered, and back": Use(
        lambda s: (s * (abs(s.freq_x) < 0.1)).bigfft.ifft(),
        lambda s: (s * (abs(s.freq_x) < 0.1)).bigfft.ifft().compute(),
    ),
}
