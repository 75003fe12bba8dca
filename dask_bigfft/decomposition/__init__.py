"""Decomposition of transforms: factors, orders, steps.

::

    factors  factors of a length, digits of transposed order
    steps    steps of one axis: FFTs of digits, twiddles, chirps
    layout   blocks and digits of an array, tiles of a block
    rounds   rounds and exchanges of all axes, scaling, shared buffers
    cosines  cosine and sine transforms as FFTs
"""
