"""Between rounds: which parts of which blocks make up a block of the next round.

::

    which copies     shards (by arithmetic: digits, pieces of an axis, their product)
    one process      gather (into own memory, on the host or on GPUs), parts (nothing is copied, and
                     blocks as the next exchange takes them)
    between workers  packing (what a source block gives away), p2p (distributed's rechunk)
    disk             scratch (files of shards, and their records) -> folders (locked);
                     gather (of stored arrays, and block by block while shards are read)
"""
