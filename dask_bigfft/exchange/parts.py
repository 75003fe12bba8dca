"""A block as parts of source blocks that lie one after the other, so that nothing is gathered.

Where a block is made of slabs of its sources, each of them whole in all dimensions but the first,
whoever only reads the block (a device that copies it anyway) can do without gathering it.

Imports `kernels` and this room.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.product import Product
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.kernels.copy import strided_view

Array = npt.NDArray[Any]

#: Parts beyond which a block is gathered all the same.
MOST_PARTS = 4096


def slabs(
    exchange: ExchangeMap, product: Product, sources: list[Array], shape: tuple[int, ...]
) -> list[tuple[int, Array]] | None:
    """Return the parts of a block along its first dimension that is longer than 1.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    product : Product
        All copies into the block, which cover it and are not conjugated.
    sources : list of ndarray
        The source blocks of the product, of the block's dtype.
    shape : tuple of int
        Of the block.

    Returns
    -------
    list of (int, ndarray) or None
        Where each part begins along that dimension, and its values as they lie in the source, in
        the order of the block's dimensions; None where the block is not made of such parts.
    """
    if len(product.which) > MOST_PARTS or not math.prod(shape):
        return None
    places = [
        (axis, dim) for axis, count in enumerate(exchange.target_dims) for dim in range(count)
    ]
    columns = [product.along(*place) for place in places]
    if -1 in columns or len(columns) != product.counts.shape[1]:
        return None
    cut = next((d for d, n in enumerate(shape) if n > 1), 0)
    counts = product.counts[:, columns]
    if any((counts[:, d] != n).any() for d, n in enumerate(shape) if d != cut):
        return None
    strides = np.array([source.strides for source in sources], np.int64)[product.which]
    starts, steps = product.in_sources(exchange, strides)
    steps = steps[:, columns]
    axis, dim = places[cut]
    begins = product.tables[axis].target_starts[product.chosen[axis]][:, dim]
    found = []
    for i in np.argsort(begins).tolist():
        falling = [int(s) for s, n in zip(steps[i], counts[i], strict=True) if n > 1]
        if any(s <= 0 for s in falling) or falling != sorted(falling, reverse=True):
            return None
        source = sources[product.which[i]]
        part = strided_view(source, int(starts[i]), counts[i].tolist(), steps[i].tolist())
        found.append((int(begins[i]), part))
    ends = [begin + part.shape[cut] for begin, part in found]
    whole = found[0][0] == 0 and ends[-1] == shape[cut]
    joined = all(end == begin for end, (begin, _) in zip(ends, found[1:], strict=False))
    return found if whole and joined else None
