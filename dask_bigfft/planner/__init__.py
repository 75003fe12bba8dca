"""Plans: the search for them, their cost model, and their explanation.

::

    what is wanted   request, machine (what it runs on) <- profile (its speeds)
    the search       search -> ranking -> candidates: digits (lengths), programs (steps of an axis),
                     layouts (blocks), rows (of stored arrays)
                     merging (tiny blocks), scratch_pieces (larger blocks), filters, shifts
    what it costs    cost (memory, tasks) <- library_memory, joints (blocks that lie together)
                     seconds <- work, traffic; thread_seconds <- interpreter; device_seconds
                     phases (of a report)
    who does it      deciding, balance (shares of CPU threads and devices), device_settings
    the answer       plan; explain and drawing <- notation, wording; encoding (JSON)
"""
