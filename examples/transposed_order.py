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

# the noise has a standard deviation of 1
SEED = 2023
ECHOES = 5
LOUDNESS = 0.5
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
    heard = random.standard_normal(n)
    for place in places:
        heard[place : place + CHIRP] += LOUDNESS * chirp()
    return heard, places


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
    heard, places = record(n)
    x = da.from_array(heard, chunks=-(-n // 16), name=False).persist()
    sound = da.from_array(chirp(), name=False)
    wanted = scipy.fft.irfft(scipy.fft.rfft(heard) * scipy.fft.rfft(chirp(), n).conj(), n)

    seconds = {"natural": [], "transposed": []}
    for _ in range(repetitions):
        for order, taken in seconds.items():
            start = time.perf_counter()
            correlation(x, sound, order).persist()
            taken.append(time.perf_counter() - start)
    found = {order: correlation(x, sound, order).compute() for order in seconds}
    return {
        "n": n,
        "chunks": x.numblocks[0],
        "heard": heard,
        "places": places,
        "seconds": {order: float(np.median(taken)) for order, taken in seconds.items()},
        "exchanges": {order: exchanges(x, order) for order in seconds},
        "errors": {
            order: float(np.linalg.norm(found[order] - wanted) / np.linalg.norm(wanted))
            for order in seconds
        },
        "correlation": found["transposed"] / np.std(found["transposed"]),
    }


def report(found):
    """Print what a run did, how fast, and how far from the answer it is."""
    print(f"A record of {found['n']} samples in {found['chunks']} chunks, correlated with a chirp:")
    for order, (forward, back) in found["exchanges"].items():
        print(
            f"  {order:10}  {forward} + {back} exchanges, {found['seconds'][order]:.2f} s,"
            f" relative L2 distance from SciPy {found['errors'][order]:.1e}"
        )
    heights = found["correlation"]
    print(f"  echoes were sent back at {found['places'].tolist()}")
    print(
        f"  and are found at         {loudest(heights).tolist()},"
        f" {heights[loudest(heights)].min():.0f} standard deviations high or more"
    )


def right(found):
    """Return whether the answers are SciPy's and the echoes are found."""
    same = loudest(found["correlation"]).tolist() == found["places"].tolist()
    return same and max(found["errors"].values()) < 1e-14


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**22, help="length, default 2^22")
    found = run(parser.parse_args().n)
    print(
        "In transposed order the places of a spectrum of 12 hold the frequencies",
        dask_bigfft.transposed_index(12).tolist(),
    )
    report(found)
    if not right(found):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
