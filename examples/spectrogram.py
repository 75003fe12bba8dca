"""A call in a noisy record, seen and cleaned slice by slice: examples/spectrogram.py

A record has noise, a hum of one tone, and a call whose pitch rises. Its spectrogram shows both. The
hum is removed from the spectra of the slices, and the inverse transform makes a record again.
`zoom_fft` measures the pitch of the hum on a fine grid of frequencies. Everything is lazy and in
chunks, and SciPy does the same without chunks. With matplotlib, ``--picture PATH`` draws it.
"""

import argparse
import importlib

import dask
import dask.array as da
import numpy as np
import scipy.signal
from extras import extra

from dask_bigfft import signal

SEED = 5
RATE = 4000.0  # samples per second
HUM = 317.25  # Hz
WINDOW = scipy.signal.get_window("hann", 512)
HOP = 128


def record(n):
    """Return the times of a record, its call, and the record."""
    times = np.arange(n) / RATE
    duration = n / RATE
    pitch = 500 + 800 * times / duration
    loudness = np.exp(-(((times / duration - 0.5) / 0.2) ** 2))
    call = loudness * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)
    noise = 0.3 * np.random.default_rng(SEED).standard_normal(n)
    return times, call, call + noise + 0.5 * np.sin(2 * np.pi * HUM * times)


def distance(a, b):
    """Return the relative L2 distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run(n):
    """Return what a picture can show, and how far it is from SciPy."""
    times, call, samples = record(n)
    x = da.from_array(samples, chunks=n // 10, name=False)
    spectra = signal.stft(x, WINDOW, HOP, RATE)
    power = signal.spectrogram(x, WINDOW, HOP, RATE, scale_to="psd")

    transform = scipy.signal.ShortTimeFFT(WINDOW.copy(), HOP, RATE)
    keeps = np.abs(transform.f - HUM) > 3 * transform.delta_f
    cleaned = signal.istft(spectra * keeps[:, None], WINDOW, HOP, RATE, k1=n)

    fine, step = np.linspace(HUM - 2, HUM + 2, 401, retstep=True)
    zoomed = signal.zoom_fft(x, [fine[0], fine[-1]], 401, fs=RATE, endpoint=True)
    power, cleaned, zoomed = dask.compute(power, cleaned, zoomed)

    by_scipy = transform.stft(samples)
    expected = transform.istft(by_scipy * keeps[:, None], k1=n)
    transform.scale_to("psd")
    return {
        "n": n,
        "blocks": x.numblocks[0],
        "slices": power.shape[1],
        "times": times,
        "samples": samples,
        "call": call,
        "cleaned": cleaned,
        "power": power,
        "slice_times": transform.t(n),
        "frequencies": transform.f,
        "hum": float(fine[np.argmax(np.abs(zoomed))]),
        "step": float(step),
        "errors": {
            "spectrogram, against SciPy": distance(power, transform.spectrogram(samples)),
            "cleaned record, against SciPy": distance(cleaned, expected),
        },
    }


def report(summary):
    """Print what a run found."""
    print(
        f"A record of {summary['n']} samples in {summary['blocks']} chunks, "
        f"{summary['slices']} slices of {len(WINDOW)}:"
    )
    print(f"  the hum has {summary['hum']:.2f} Hz, {HUM:.2f} Hz is in the record")
    for name, error in summary["errors"].items():
        print(f"  {name}: {error:.1e}")


def right(summary):
    """Return whether the answers are what is known."""
    return max(summary["errors"].values()) < 1e-12 and abs(summary["hum"] - HUM) < 0.05


def draw(summary, path):
    """Draw the spectrogram, and the record before and after."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    decibels = 10 * np.log10(summary["power"] + 1e-12)
    axes[0].pcolormesh(
        summary["slice_times"],
        summary["frequencies"],
        decibels,
        vmin=decibels.max() - 60,
        cmap="viridis",
        rasterized=True,
    )
    axes[0].set(ylabel="Hz", ylim=(0, RATE / 2), title="power density, dB")
    axes[1].plot(summary["times"], summary["samples"], lw=0.3, label="record")
    axes[1].plot(summary["times"], summary["cleaned"], lw=0.3, label="without the hum")
    axes[1].set(xlabel="s", title="record")
    axes[1].legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**17, help="samples, default 2^17")
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
