"""Plans: the search for them, their cost model, and their explanation.

::

    plan_data        the data of a plan, its operands (plans of Bluestein filters), the Request, the
                     Machine, exchanges, and shared buffers of blocks
    plan             Plan (for users), plans that only rearrange, phases (of a report)
    strategies       one loop over named strategies: the blocks to search plans for, and the steps
                     that follow; merging of tiny blocks
    search           search -> candidates (digits and steps of an axis) -> layouts (blocks),
                     rows (of stored arrays)
    cost             cost (tasks), memory (a walk over the stages), seconds (the cost model)
                     <- profile (prices; JSON)
    GPUs             passes (the search) -> tile_plan (tiles of a round, settings by hand)
                     work_sharing (parts of CPU threads and GPUs)
    answer           explain (text, tables, drawings)
"""
