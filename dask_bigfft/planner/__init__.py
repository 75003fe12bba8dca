"""Plans: the search for them, their cost model, and their explanation.

::

    request          the choices of the caller (Request), and the Machine
    stages           Stage: an exchange and its round; shared buffers of blocks
    plan             Plan: its stages and operands (plans of Bluestein filters), and the Forecast
    shifted          plans that only rearrange, and transforms of what is shifted
    strategies       one loop over named strategies: the blocks to search plans for, and the steps
                     that follow; merging of tiny blocks
    search           search -> candidates (digits and steps of an axis) -> layouts (blocks),
                     operators (inverse rounds), rows (of stored arrays)
    cost             cost (tasks), memory (a walk over the stages) <- library_memory,
                     seconds (the cost model) <- profile (prices; JSON)
    GPUs             passes (the search) -> tile_plan (tiles of a round, settings by hand)
                     work_sharing (parts of CPU threads and GPUs)
    inside           plans that overwrite their input
    answer           explain (texts and tables) -> overview (in short), drawing (HTML);
                     phases (of a report)
"""
