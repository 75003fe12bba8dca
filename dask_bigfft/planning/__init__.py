"""From a call to the plan that is taken: what was written, what it runs on, what is tried.

::

    arguments (what a user wrote, checked) + surroundings (machine or cluster, its profile)
        -> making (a request) -> choosing (by the model, or by trial: tuning) -> Plan
"""
