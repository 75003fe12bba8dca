"""Types of arrays, and of the indices of their blocks and parts."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Block = tuple[int, ...]
Region = tuple[slice, ...]
