"""The cosine and sine transforms of `scipy.fft` on dask arrays of any chunking.

Imports this room.
"""

from dask_bigfft.cosines.functions import dct, dctn, dst, dstn, idct, idctn, idst, idstn

__all__ = ["dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"]
