"""From a call to its plan: arguments, environment, choice and trials.

::

    arguments (of the caller, checked) + environment (machine or cluster) <- profiles (files)
        -> making (a request) -> choosing (by the model, or by trial) -> Plan
    libraries (FFT libraries of all workers)
    tuning (the tuner, and wisdom) -> trials (plans, and settings of devices, that are run)
"""
