"""Find echoes in a long record by a product of spectra: examples/transposed_order.py

A chirp is sent out and comes back several times, buried in noise. The correlation of the record
with the chirp shows when: spectrum times conjugate spectrum, and back. Nobody looks at the spectra,
so they may stay in transposed order, which saves an exchange in each transform of a split axis.
"""

import argparse
import time

import dask.array as da
import numpy as np
import scipy.fft

import dask_bigfft
from dask_bigfft import fft

SEED = 2023
ECHOES = 5
LOUDNESS = 0.5  # in noise with a standard deviation of 1
CHIRP = 4096  # samples
REPETITIONS = 5


def chirp():
    """Return the sound that was sent out: its frequency rises from 0 to 0.4 per sample."""
    t = np.arange(CHIRP)
    return np.sin(np.pi * 0.4 * t**2 / CHIRP) * np.hanning(CHIRP)


def record(n):
    """Return noise with echoes, and where those are."""
    random = np.random.default_rng(SEED)
    places = np.sort(random.choice(n // CHIRP - 1, ECHOES, replace=False)) * CHIRP + 1234
    samples = random.standard_normal(n)
    for place in places:
        samples[place : place + CHIRP] += LOUDNESS * chirp()
    return samples, places


def correlation(x, sound, order):
    """Return the lazy circular correlation of a record with a sound, in the record's chunks."""
    n = x.shape[0]
    spectrum = fft.rfft(x, order=order)
    # The sound is short, in one chunk, and padded; its spectrum is in the same order all the same.
    other = fft.rfft(sound, n=n, order=order, chunks=spectrum.chunks)
    return fft.irfft(spectrum * other.conj(), n=n, order=order, chunks=x.chunks)


def exchanges(x, order):
    """Return how many exchanges the record's transform needs, and how many the way back."""
    n = x.shape[0]
    forward = dask_bigfft.plan(x, "rfft", order=order)
    spectrum = da.zeros(sum(forward.chunks[0]), chunks=forward.chunks, dtype=complex)
    back = dask_bigfft.plan(spectrum, "irfft", n=n, order=order, chunks=x.chunks)
    return len(forward.travelling), len(back.travelling)


def loudest(heights):
    """Return where the highest values are, in rising order."""
    return np.sort(np.argsort(heights)[-ECHOES:])


def run(n, repetitions=REPETITIONS):
    """Return times, exchanges, errors and echoes for both orders."""
    samples, places = record(n)
    x = da.from_array(samples, chunks=-(-n // 16), name=False).persist()
    sound = da.from_array(chirp(), name=False)
    chirp_spectrum = scipy.fft.rfft(chirp(), n)
    expected = scipy.fft.irfft(scipy.fft.rfft(samples) * chirp_spectrum.conj(), n)

    seconds = {"natural": [], "transposed": []}
    for _ in range(repetitions):
        for order in seconds:
            start = time.perf_counter()
            correlation(x, sound, order).persist()
            seconds[order].append(time.perf_counter() - start)
    correlations = {order: correlation(x, sound, order).compute() for order in seconds}
    return {
        "n": n,
        "chunks": x.numblocks[0],
        "record": samples,
        "places": places,
        "seconds": {order: float(np.median(times)) for order, times in seconds.items()},
        "exchanges": {order: exchanges(x, order) for order in seconds},
        "errors": {
            order: float(np.linalg.norm(values - expected) / np.linalg.norm(expected))
            for order, values in correlations.items()
        },
        "correlation": correlations["transposed"] / np.std(correlations["transposed"]),
    }


def report(summary):
    """Print what a run did, how fast, and how far from the answer it is."""
    print(
        f"A record of {summary['n']} samples in {summary['chunks']} chunks,"
        " correlated with a chirp:"
    )
    for order, (forward, back) in summary["exchanges"].items():
        print(
            f"  {order:10}  {forward} + {back} exchanges, {summary['seconds'][order]:.2f} s,"
            f" relative L2 distance from SciPy {summary['errors'][order]:.1e}"
        )
    heights = summary["correlation"]
    print(f"  echoes were sent back at {summary['places'].tolist()}")
    print(
        f"  and are found at         {loudest(heights).tolist()},"
        f" {heights[loudest(heights)].min():.0f} standard deviations high or more"
    )


def right(summary):
    """Return whether the answers are SciPy's and the echoes are found."""
    same = loudest(summary["correlation"]).tolist() == summary["places"].tolist()
    return same and max(summary["errors"].values()) < 1e-14


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**22, help="length, default 2^22")
    summary = run(parser.parse_args().n)
    print(
        "In transposed order the places of a spectrum of 12 hold the frequencies",
        dask_bigfft.transposed_index(12).tolist(),
    )
    report(summary)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
