"""How a length falls apart: factors, phases, orders, steps; imports NumPy and `errors` only.

::

    factors (of a length), order (of a spectrum)
    steps (one axis) -> rounds (all axes) -> layout (in which blocks); joints (blocks together)
    variants (in which order digits lie), scaling (which step divides), tiles (of a block)
    phases (twiddles, chirps), cosines (cosine and sine transforms as FFTs)
"""
