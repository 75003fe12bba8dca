"""Arrays in files: sources that are read block by block, and targets that grow until complete.

`sources` reads and `targets` writes; `formats` has plain Zarr chunks around zarr, packed and
missing values, and the error of what cannot be read; `hdf5` says where an HDF5 file has its values.
"""
