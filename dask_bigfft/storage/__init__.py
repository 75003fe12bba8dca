"""Arrays in files: sources that are read block by block, and targets that are written so.

`sources` reads and `targets` writes. `formats` reads and writes plain Zarr chunks without zarr,
decodes packed variables and finds missing chunks. `hdf5` finds the files of an HDF5 dataset.
"""
