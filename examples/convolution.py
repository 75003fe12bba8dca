"""Filter a long record and find a pattern in it, in blocks: examples/convolution.py

A record of noise with a pattern in it now and then is low-passed by some hundreds of taps
(`oaconvolve`, block by block), by a filter as long as a chunk (`fftconvolve`, through spectra in
transposed order), and compared with the pattern (`correlate`). Everything is lazy, in chunks, and
held against SciPy. With matplotlib, ``--picture PATH`` draws it.
"""

import argparse
import importlib
import time

import dask.array as da
import numpy as np
import scipy.signal
from extras import extra

from dask_bigfft import signal

SEED = 7
TIMES = 4  # number of patterns in noise with a standard deviation of 1
RATE = 1000.0  # samples per second


def pattern():
    """Return what is looked for: half a second that swells, rises in pitch and fades."""
    t = np.arange(512) / RATE
    return np.sin(2 * np.pi * (20 + 60 * t) * t) * np.hanning(512)


def record(n):
    """Return noise with the pattern in it, and where that is."""
    random = np.random.default_rng(SEED)
    samples = random.standard_normal(n)
    places = np.sort(random.choice(n // 2048 - 1, TIMES, replace=False)) * 2048 + 700
    for place in places:
        samples[place : place + 512] += pattern()
    return samples, places


def filters(n):
    """Return a short and a long low-pass filter."""
    return (scipy.signal.firwin(255, 80, fs=RATE), scipy.signal.firwin(n // 16 + 1, 80, fs=RATE))


def jobs(x, short, long):
    """Return the lazy results, by name."""
    return {
        "oaconvolve, short filter": signal.oaconvolve(x, short, mode="same"),
        "fftconvolve, long filter": signal.fftconvolve(x, long, mode="same"),
        "correlate, pattern": signal.correlate(x, pattern(), mode="valid", method="fft"),
    }


def run(n):
    """Return the record, the results, their errors and times."""
    samples, places = record(n)
    x = da.from_array(samples, chunks=-(-n // 16), name=False).persist()
    short, long = filters(n)
    lazy = jobs(x, short, long)
    expected = {
        "oaconvolve, short filter": scipy.signal.oaconvolve(samples, short, mode="same"),
        "fftconvolve, long filter": scipy.signal.fftconvolve(samples, long, mode="same"),
        "correlate, pattern": scipy.signal.correlate(samples, pattern(), mode="valid"),
    }
    results = {}
    seconds = {}
    for name, job in lazy.items():
        start = time.perf_counter()
        results[name] = job.compute()
        seconds[name] = time.perf_counter() - start
    errors = {
        name: float(np.linalg.norm(results[name] - reference) / np.linalg.norm(reference))
        for name, reference in expected.items()
    }
    return {
        "n": n,
        "blocks": x.numblocks[0],
        "record": samples,
        "places": places,
        "peaks": peaks(results["correlate, pattern"]),
        "results": results,
        "errors": errors,
        "seconds": seconds,
    }


def peaks(heights):
    """Return where the highest peaks are, in rising order."""
    others = heights.copy()
    places = []
    for _ in range(TIMES):
        place = int(np.argmax(others))
        places.append(place)
        others[max(0, place - 256) : place + 256] = -np.inf
    return np.sort(places)


def report(summary):
    """Print what a run did, how long it took, and how far from SciPy it is."""
    print(f"A record of {summary['n']} samples in {summary['blocks']} chunks:")
    for name, error in summary["errors"].items():
        print(
            f"  {name:26} {summary['seconds'][name]:6.2f} s, relative L2 distance from SciPy "
            f"{error:.1e}"
        )
    print(f"  the pattern lies at   {summary['places'].tolist()}")
    print(f"  and is found at       {summary['peaks'].tolist()}")


def right(summary):
    """Return whether the answers are SciPy's and the pattern is found."""
    near = np.all(abs(summary["peaks"] - summary["places"]) <= 2)
    return bool(near) and max(summary["errors"].values()) < 1e-13


def draw(summary, path):
    """Draw the neighbourhood of the first pattern, and how well the record fits it."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    place = int(summary["places"][0])
    low = max(0, place - 700)
    high = place + 1300
    t = np.arange(low, high) / RATE
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    above.plot(t, summary["record"][low:high], color="0.8", label="record")
    above.plot(t, summary["results"]["oaconvolve, short filter"][low:high], label="low-passed")
    above.legend(loc="upper right")
    below.plot(t, summary["results"]["correlate, pattern"][low:high])
    below.set(xlabel="seconds", ylabel="fit with the pattern")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**22, help="length, default 2^22")
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
