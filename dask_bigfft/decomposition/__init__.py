"""How a length falls apart: factors, orders, steps; imports NumPy, SciPy and `errors` only.

::

    factors (of a length; orders of a spectrum)
    steps (one axis) -> rounds (all axes; which step divides) -> layout (in which blocks, in which
                     order digits lie, tiles of a block); which blocks lie together
    cosines (cosine and sine transforms as FFTs)
"""
