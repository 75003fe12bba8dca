"""From a call to the plan that is taken: what was written, what it runs on, what is tried.

::

    arguments (what a user wrote, checked) + environment (machine or cluster) <- profiles (files)
        -> making (a request) -> choosing (by the model, or by trial) -> Plan
    libraries (FFT libraries of all workers)
    tuning (what is tried, and kept) -> trials (plans that are run), device_tuning (of a device)
"""
