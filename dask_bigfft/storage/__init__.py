"""Arrays in files: sources that are read block by block, and targets that grow until complete."""
