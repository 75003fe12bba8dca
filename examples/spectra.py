"""Spectra and derivatives of a turbulent-looking field, in blocks: examples/spectra.py

A random field whose power falls with the 11/3rd power of the wave number is made on a periodic
box. Its power averaged over directions gives the slope back, its Laplacian is inverted by Poisson's
equation, and Welch's method finds a tone in a noisy record. Everything is lazy and in chunks, each
job takes one pass, and the answers are held against what is known. With matplotlib,
``--picture PATH`` draws it.
"""

import argparse
import importlib

import dask
import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal
from extras import extra

from dask_bigfft import signal

SEED = 11
SLOPE = -11 / 3
TONE = 50.0
RATE = 1000.0


def field(n):
    """Return a periodic random field of n by n, n even, whose mean spectrum is known."""
    fy = np.fft.fftfreq(n)[:, None]
    fx = np.fft.rfftfreq(n)[None, :]
    radius = np.hypot(fy, fx) * n
    # No mean, and nothing at the highest frequency of an axis, which has no slope.
    radius[0, 0] = radius[n // 2] = radius[:, n // 2] = np.inf
    noise = scipy.fft.rfft2(np.random.default_rng(SEED).standard_normal((n, n)))
    values = scipy.fft.irfft2(noise * radius ** (SLOPE / 2), s=(n, n))
    return values / values.std()


def record(n):
    """Return noise with a tone in it."""
    random = np.random.default_rng(SEED)
    return random.standard_normal(n) + 0.3 * np.sin(2 * np.pi * TONE / RATE * np.arange(n))


def run(n):
    """Return what a picture can show, and how far it is from what is known."""
    values = field(n)
    x = da.from_array(values, chunks=(-(-n // 8), n), name=False)
    frequencies, power = signal.radial_power_spectrum(x)
    laplacian = signal.laplacian(x)
    solved = signal.poisson(laplacian)
    slopes = signal.gradient(x)
    energy = sum(slope**2 for slope in slopes).mean()

    samples = record(16 * n)
    lazy_samples = da.from_array(samples, chunks=n, name=False)
    lines, tone = signal.welch(lazy_samples, fs=RATE, nperseg=512)
    power, laplacian, solved, energy, tone = dask.compute(power, laplacian, solved, energy, tone)

    _, expected_tone = scipy.signal.welch(samples, RATE, nperseg=512)
    inner = slice(4, n // 4)
    fitted = np.polyfit(np.log(frequencies[inner]), np.log(power[inner]), 1)[0]
    return {
        "n": n,
        "blocks": x.numblocks,
        "field": values,
        "laplacian": laplacian,
        "frequencies": frequencies,
        "power": power,
        "slope": float(fitted),
        "lines": lines,
        "tone": tone,
        "loudest": float(lines[np.argmax(tone)]),
        "errors": {
            "Poisson's equation, against the field": distance(solved, values),
            # Integration by parts: the mean square slope is minus the mean of field x Laplacian.
            "slopes, by parts": abs(float(energy) / -np.mean(values * laplacian) - 1),
            "Welch's method, against SciPy": distance(tone, expected_tone),
        },
    }


def distance(a, b):
    """Return the relative L2 distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def report(summary):
    """Print what a run found."""
    print(f"A field of {summary['n']} x {summary['n']} in {summary['blocks'][0]} chunks:")
    print(
        f"  power falls with the power {summary['slope']:.2f} of the wave number, "
        f"{SLOPE:.2f} was asked for"
    )
    print(f"  the loudest tone has {summary['loudest']:.1f} Hz, {TONE:.1f} Hz is in the record")
    for name, error in summary["errors"].items():
        print(f"  {name}: {error:.1e}")


def right(summary):
    """Return whether the answers are what is known."""
    return (
        max(summary["errors"].values()) < 1e-10
        and abs(summary["slope"] - SLOPE) < 0.3
        and abs(summary["loudest"] - TONE) < RATE / 512
    )


def draw(summary, path):
    """Draw the field, its Laplacian and both spectra."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(2, 2, figsize=(8, 7))
    axes[0, 0].imshow(summary["field"], cmap="viridis")
    axes[0, 0].set(title="field", xticks=[], yticks=[])
    limit = 3 * summary["laplacian"].std()
    axes[0, 1].imshow(summary["laplacian"], cmap="RdBu", vmin=-limit, vmax=limit)
    axes[0, 1].set(title="Laplacian", xticks=[], yticks=[])
    axes[1, 0].loglog(summary["frequencies"][1:], summary["power"][1:])
    axes[1, 0].set(xlabel="cycles per sample", title="power, all directions")
    axes[1, 1].semilogy(summary["lines"], summary["tone"])
    axes[1, 1].set(xlabel="Hz", title="record, by Welch's method")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1024, help="edge of the field, default 1024")
    parser.add_argument("--picture", help="where to draw the result, with matplotlib")
    arguments = parser.parse_args()
    summary = run(arguments.n)
    report(summary)
    if arguments.picture:
        draw(summary, arguments.picture)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
