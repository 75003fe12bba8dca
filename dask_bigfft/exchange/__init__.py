"""Exchanges between rounds: the parts of source blocks that make up each target block.

::

    arithmetic       shards (strided copies along each axis, and their products)
    one process      gather (views of target blocks, and their parts without copies)
    between workers  packing (shards as contiguous arrays)
    disk             scratch (files of shards, and their records) -> folders (locks);
                     gather (rows of stored arrays, and blocks assembled while shards are read)
"""
