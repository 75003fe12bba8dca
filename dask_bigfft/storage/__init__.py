"""Arrays in files: sources that are read block by block, and targets that grow until complete.

`sources` reads and `targets` writes; `chunk_files` are plain Zarr chunks around zarr, `hdf5` and
`missing` say where a source's values are and which are not, `damaged` what cannot be read.
"""
