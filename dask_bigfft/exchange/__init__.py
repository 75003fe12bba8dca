"""Between rounds: which parts of which blocks make up a block of the next round.

::

    which copies     shards (by arithmetic) <- boxes (of digits)
                     product (all of a block) -> tables (on the host or on GPUs)
    one process      gather (into own memory), parts (nothing is copied),
                     common (blocks lie together), stacking (as the next exchange takes them),
                     spoiled (blocks that were written over by a round that failed)
    between workers  packing (what a source block gives away), p2p (distributed's rechunk)
    disk             scratch (files of shards, and their records) -> folders (locked);
                     rows (of stored arrays, in the place of files),
                     arriving (blocks put together while shards are read)
"""
