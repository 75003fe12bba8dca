"""Random transforms of random arrays in random chunks."""

import math

import dask.array as da
import numpy as np
import scipy.fft

from dask_bigfft import signal
from dask_bigfft.testing.strategies import random_array

LENGTHS = (1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 24, 31, 35, 64, 97, 120, 128, 243)
OF_SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")
OF_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


def cut(rng, n):
    """Random chunks of an axis."""
    ends = np.unique(rng.integers(1, n + 1, rng.integers(0, 4))) if n else []
    return tuple(np.diff([0, *(e for e in ends if e < n), n]).tolist())


def random_case(seed):
    """An array, its chunks, the name and keywords of a transform, the result and its tolerance."""
    rng = np.random.default_rng(seed)
    shape = []
    for _ in range(rng.integers(1, 6)):
        shape.append(int(rng.choice([n for n in LENGTHS if n * math.prod(shape) <= 20000])))
    several = rng.random() < 0.6
    name = str(rng.choice(OF_SEVERAL if several else OF_ONE))
    kinds = ["f8", "f4"] if name in ("rfftn", "rfft", "ihfft") else ["c16", "c8", "f8", "f4"]
    x = random_array(tuple(shape), str(rng.choice(kinds)), rng)
    axes = rng.permutation(x.ndim)[: rng.integers(1, x.ndim + 1)].tolist()
    lengths = [max(2, int(n + rng.choice([0, 0, 0, 3, -1]))) for n in np.take(shape, axes)]
    keywords = {"axes": axes, "s": lengths} if several else {"axis": axes[0], "n": lengths[0]}
    keywords["norm"] = str(rng.choice(["backward", "ortho", "forward"]))
    double = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected = getattr(scipy.fft, name)(double, **keywords)
    close = 1e-4 if x.real.dtype.itemsize == 4 else 1e-12
    return x, tuple(cut(rng, n) for n in shape), name, keywords, expected, close


def of_spectrum(y):
    """Return as many columns as the spectrum of the array has."""
    n = y.shape[-1]
    return y if y.dtype.kind == "c" else y[:, : n // 2 + 1]


#: Functions of two arrays with two axes.
SIGNALS = {
    "gradient": lambda x, y: signal.gradient(x, 0, d=0.5),
    "laplacian": lambda x, y: signal.laplacian(x, d=(0.5, 1)),
    "poisson": lambda x, y: signal.poisson(x),
    "power": lambda x, y: signal.power_spectrum(x),
    "cross": lambda x, y: signal.cross_spectrum(x, y, 0, scaling="spectrum"),
    "radial": lambda x, y: signal.radial_power_spectrum(x)[1],
    "rows": lambda x, y: signal.radial_power_spectrum(x, 1)[1],
    "welch": lambda x, y: signal.welch(x, nperseg=7, axis=0)[1],
    "median": lambda x, y: signal.csd(
        x, y, window=np.ones(8), detrend="linear", axis=0, average="median"
    )[1],
    "overlap": lambda x, y: signal.oaconvolve(x, y[:3, :2]),
    "direct": lambda x, y: signal.convolve(x, y[:2], method="direct"),
    "integers": lambda x, y: signal.convolve(*((8 * a.real).astype(int) for a in (x, y[:2]))),
    "same": lambda x, y: signal.fftconvolve(x, y, mode="same", axes=0),
    "correlate": lambda x, y: signal.correlate(x, y, method="fft"),
    "slices": lambda x, y: signal.stft(
        x,
        np.hanning(9),
        4,
        1.0,
        fft_mode="centered",
        axis=0,
        padding="even",
    ),
    "spectrogram": lambda x, y: signal.spectrogram(
        x.real,
        np.hanning(9),
        4,
        1.0,
        y.real,
        "linear",
    ),
    "samples": lambda x, y: signal.istft(
        x,
        np.hanning(9),
        4,
        1.0,
        mfft=x.shape[0],
        fft_mode="twosided",
        phase_shift=3,
    ),
    "samples of rows": lambda x, y: signal.istft(
        da.stack([x, y]),
        np.hanning(9),
        4,
        1.0,
        mfft=x.shape[0],
        fft_mode="centered",
    ),
    "zoom": lambda x, y: signal.zoom_fft(x, 0.5, 50, axis=0),
    "lowpass": lambda x, y: signal.lowpass(x, 0.2),
    "values": lambda x, y: signal.fourier_filter(x, of_spectrum(y)),
    "values of a row": lambda x, y: signal.fourier_filter(x, y[:1, :1], 0),
    "kernel": lambda x, y: signal.fftconvolve(x, y[:3, :5], mode="valid"),
    "shift": lambda x, y: signal.shift(x, (0.5, 1.25)),
    "resample": lambda x, y: signal.resample(x, 100, axis=0),
    "downsample": lambda x, y: signal.downsample(x, 2),
    "envelope": lambda x, y: signal.envelope(x.real, residual=None, axis=0),
    "masked": lambda x, y: signal.convolve_masked(x.real, np.ones((3, 4)), x.real < 0),
    "known": lambda x, y: signal.power_spectrum(x, mask=y.real < 0),
    "gaps": lambda x, y: signal.fill_gaps(
        x,
        y.real < -6,
        band=0.2,
        iterations=2,
        tolerance=0.99,
    )[0],
}
