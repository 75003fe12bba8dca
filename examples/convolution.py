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

# the noise has a standard deviation of 1; samples per second
SEED = 7
TIMES = 4
RATE = 1000.0


def pattern():
    """Return what is looked for: half a second that swells, rises in pitch and fades."""
    t = np.arange(512) / RATE
    return np.sin(2 * np.pi * (20 + 60 * t) * t) * np.hanning(512)


def record(n):
    """Return noise with the pattern in it, and where that is."""
    random = np.random.default_rng(SEED)
    heard = random.standard_normal(n)
    places = np.sort(random.choice(n // 2048 - 1, TIMES, replace=False)) * 2048 + 700
    for place in places:
        heard[place : place + 512] += pattern()
    return heard, places


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
    heard, places = record(n)
    x = da.from_array(heard, chunks=-(-n // 16), name=False).persist()
    short, long = filters(n)
    lazy = jobs(x, short, long)
    wanted = {
        "oaconvolve, short filter": scipy.signal.oaconvolve(heard, short, mode="same"),
        "fftconvolve, long filter": scipy.signal.fftconvolve(heard, long, mode="same"),
        "correlate, pattern": scipy.signal.correlate(heard, pattern(), mode="valid"),
    }
    results = {}
    seconds = {}
    for name, job in lazy.items():
        start = time.perf_counter()
        results[name] = job.compute()
        seconds[name] = time.perf_counter() - start
    errors = {
        name: float(np.linalg.norm(results[name] - right) / np.linalg.norm(right))
        for name, right in wanted.items()
    }
    found = peaks(results["correlate, pattern"])
    return {
        "n": n,
        "blocks": x.numblocks[0],
        "heard": heard,
        "places": places,
        "found": found,
        "results": results,
        "errors": errors,
        "seconds": seconds,
    }


def peaks(heights):
    """Return where the highest peaks are, in rising order."""
    left = heights.copy()
    found = []
    for _ in range(TIMES):
        found.append(int(np.argmax(left)))
        left[max(0, found[-1] - 256) : found[-1] + 256] = -np.inf
    return np.sort(found)


def report(found):
    """Print what a run did, how long it took, and how far from SciPy it is."""
    print(f"A record of {found['n']} samples in {found['blocks']} chunks:")
    for name, error in found["errors"].items():
        print(
            f"  {name:26} {found['seconds'][name]:6.2f} s, relative L2 distance from SciPy "
            f"{error:.1e}"
        )
    print(f"  the pattern lies at   {found['places'].tolist()}")
    print(f"  and is found at       {found['found'].tolist()}")


def right(found):
    """Return whether the answers are SciPy's and the pattern is found."""
    near = np.all(abs(found["found"] - found["places"]) <= 2)
    return bool(near) and max(found["errors"].values()) < 1e-13


def draw(found, path):
    """Draw the neighbourhood of the first pattern, and how well the record fits it."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    place = int(found["places"][0])
    low = max(0, place - 700)
    high = place + 1300
    t = np.arange(low, high) / RATE
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    above.plot(t, found["heard"][low:high], color="0.8", label="record")
    above.plot(t, found["results"]["oaconvolve, short filter"][low:high], label="low-passed")
    above.legend(loc="upper right")
    below.plot(t, found["results"]["correlate, pattern"][low:high])
    below.set(xlabel="seconds", ylabel="fit with the pattern")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**22, help="length, default 2^22")
    parser.add_argument("--picture", help="where to draw the result, with matplotlib")
    arguments = parser.parse_args()
    found = run(arguments.n)
    report(found)
    if arguments.picture:
        draw(found, arguments.picture)
    if not right(found):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
