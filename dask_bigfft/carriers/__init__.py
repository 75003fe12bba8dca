"""Carriers of exchanges: how blocks travel from one round to the next.

A carrier is one file. Its class adds the tasks of an exchange to a graph, and the functions of
these tasks stand beside it.

::

    names, groups (names of tasks; blocks that an exchange connects)
    run (a plan where it is executed, and what all tasks of blocks have in common)
        buffers, poison (memory that rounds overwrite)
            base (a stage of a plan; blocks that tasks get directly)
                shared    one process: a barrier hands out all blocks of a group
                inside    one process: rounds overwrite the blocks of the input
                tasks     a task for every shard
                p2p       distributed's rechunk -> shuffle (its private names)
                disk      scratch files -> scratch_lifetime (until when they stay)
                resident  one task for blocks on the GPUs of a process
                    choice (table of the carriers, and the one that "auto" takes)
"""
