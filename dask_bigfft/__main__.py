"""``python -m dask_bigfft``: the command line."""

import sys

from dask_bigfft.cli import main

if __name__ == "__main__":
    sys.exit(main())
