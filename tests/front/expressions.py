"""A program that transforms arrays that are expressions, and compares all with NumPy.

Its argument names the library of the arrays: `dask.array`, with query planning, or `dask_array`.
"""

import importlib
import sys

import dask
import numpy as np

import dask_bigfft
from dask_bigfft import fft

LIBRARY = sys.argv[1] if __name__ == "__main__" else "dask.array"
da = importlib.import_module(LIBRARY)
x = np.random.default_rng(0).standard_normal((16, 24))
expected = np.fft.fft2(x)


def main():
    a = da.from_array(x, chunks=(4, 6))
    assert LIBRARY == "dask_array" or da.array_expr_enabled()
    assert not hasattr(a, "__dask_layers__")
    y = fft.fft2(a)
    assert type(y) is type(a) is da.Array
    same = np.testing.assert_allclose
    same(y.compute(), expected)
    same(y.compute(scheduler="synchronous", optimize_graph=False), expected)
    same((y + 1)[3:5, ::2].sum(axis=0).compute(), (expected + 1)[3:5, ::2].sum(axis=0))
    same(fft.irfft2(fft.rfft2(2 * a)).persist().compute(), 2 * x, atol=1e-12)
    for actual, wanted in zip(dask.compute(y, fft.ifft2(y)), (expected, x), strict=True):
        same(actual, wanted, atol=1e-12)
    same(fft.fftshift(y).compute(), np.fft.fftshift(expected))
    same(fft.fftshift(a + 1).compute(), np.fft.fftshift(x + 1))
    between = fft.fftshift(fft.fft2(fft.ifftshift(a)))
    same(between.compute(), np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x))))
    assert dask_bigfft.plan(fft.ifftshift(a), "fft2").source != dask_bigfft.plan(a, "fft2").source
    same(fft.fftfreq(7, chunks=2).compute(), np.fft.fftfreq(7))
    same(fft.fft(x).compute(), np.fft.fft(x))
    cut = fft.fft(da.ones(1000, chunks=10), chunks="preserve")
    frequencies = fft.frequencies_of(fft.fftshift(cut))
    assert type(frequencies) is da.Array
    same(frequencies.compute(), np.fft.fftshift(np.fft.fftfreq(1000)))
    same((fft.fftshift(cut) * frequencies).real.sum().compute(), 0, atol=1e-9)
    line = fft.fft(da.from_array(x[0], chunks=24))  # plans that print alike
    same(fft.fftshift(line).compute(), np.fft.fftshift(np.fft.fft(x[0])))
    same(fft.frequencies_of(fft.fftshift(line)).compute(), np.fft.fftshift(np.fft.fftfreq(24)))
    same(fft.fft2(a, norm="ortho").compute(), np.fft.fft2(x, norm="ortho"))
    assert fft.fft2(a).name == y.name != fft.ifft2(a).name
    assert dask_bigfft.plan(a, "fft2").chunks == y.chunks
    on_a_cluster(y, fft.fft2(a, norm="ortho"))


def on_a_cluster(*built):
    from distributed import Client, LocalCluster  # after all else, as users do who begin alone

    a = np.random.default_rng(1).standard_normal(4096)
    line = fft.fft(da.from_array(a, chunks=256))
    spectrum = np.fft.fft(a)
    with LocalCluster(n_workers=2, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            np.testing.assert_allclose(client.compute(line).result(), spectrum)
        with Client(cluster):
            with_a_default(built, line, spectrum)


def with_a_default(built, line, spectrum):
    # Who computes is known only when a graph turns into tasks.
    np.testing.assert_allclose(line.compute(), spectrum)
    np.testing.assert_allclose(line.compute(scheduler="threads"), spectrum)
    np.testing.assert_allclose(dask.delayed(np.conj)(line).compute(), spectrum.conj())
    for y in built:
        np.testing.assert_allclose(y.compute() / y.compute()[0, 0], expected / expected[0, 0])
    np.testing.assert_allclose(fft.fft2(da.from_array(x, chunks=8)).compute(), expected)
    with dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        shuffled = fft.fft2(da.from_array(x, chunks=(4, 6)))
    np.testing.assert_allclose(shuffled.compute(), expected)
    np.testing.assert_allclose(shuffled.persist()[3:7, ::2].compute(), expected[3:7, ::2])


if __name__ == "__main__":
    main()
    print("all right")
