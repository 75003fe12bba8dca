"""Plans: the search for them, their cost model, and their explanation.

::

    request          request, machine (where it runs) <- profile (its prices)
    search           search -> ranking -> candidates: programs (digits and steps of an axis),
                     layouts (blocks), rows (of stored arrays)
                     merging (tiny blocks), scratch_pieces (larger blocks), filters, shifts
    cost             cost (memory, tasks) <- library_memory, joints (blocks in shared memory)
                     seconds (the cost model) <- work, traffic
                     phases (of a report)
    GPUs             passes (the search) -> tile_plan (tiles of a round, settings by hand)
                     work_sharing (parts of CPU threads and GPUs)
    answer           plan (for users) -> plan_data, exchange; explain, drawing <- notation, wording;
                     encoding (JSON)
"""
