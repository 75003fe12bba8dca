"""From a call to its plan: arguments, environment, choice and trials.

::

    arguments (of the caller, checked, made into a request; the plan that is taken for it)
    environment (machine or cluster, its profile, and its FFT libraries)
    tuning (the tuner and wisdom; plans, and settings of devices, that are run)
"""
