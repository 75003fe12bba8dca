"""Transforms as requests and as arithmetic on digits, without arrays and without dask.

`spec` says what is asked: kind, axes, lengths, norm, dtype. `bands` has parts of a spectrum by
frequency. `factors` splits a length into digits. `layout` says in which block and place the digits
of an axis are stored. `steps` lists the operations on each digit, and `rounds` assigns digits to
rounds. `exchanges` says which blocks exchange values between two layouts, and at which cost.
`shared_layouts` has the exchanges that copy nothing, because both layouts are views of the same
memory. `cosines` has the maps of cosine and sine transforms.
"""
