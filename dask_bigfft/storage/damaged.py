"""What packages raise where a file is not what it should be: each raises what it likes.

NumPy reads the header of an ``.npy`` file with Python's tokenizer, and archives are unpacked by
`zipfile` and `zlib`. Imports the standard library.
"""

import zlib
from tokenize import TokenError
from zipfile import BadZipFile

__all__ = ["UNREADABLE"]

#: What is raised by NumPy, h5py and zarr where they read a file that is damaged.
UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    BadZipFile,
    TokenError,
    zlib.error,
)
