"""Program that does runs which are not allowed something, and prints what their errors say.

Its argument is JSON: pairs of the result's path and the keywords of the run. The program is
executed anew without the rights that root has on any file (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH),
which it may never get again (PR_CAPBSET_DROP), so that file modes count.
"""

import ctypes
import json
import os
import sys

import dask

import dask_bigfft

CAPABILITIES = (1, 2)
PR_CAPBSET_DROP = 24


def main(runs):
    """Do the runs."""
    dask.config.set({"scheduler": "threads", "bigfft.planner.whole-axis-floor": 1})
    for path, keywords in runs:
        try:
            dask_bigfft.run("in.zarr", path, **keywords)
        except PermissionError as error:
            print(error)


if "restricted" in sys.argv:
    main(json.loads(sys.argv[1]))
else:
    for capability in CAPABILITIES:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability)
    os.execv(sys.executable, [sys.executable, *sys.argv, "restricted"])
