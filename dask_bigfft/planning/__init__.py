"""From a call to its plan: arguments, environment, choice and trials.

::

    arguments (of the caller, checked, made into a request) -> choosing (by the model, or by trial)
    environment (machine or cluster, and its FFT libraries) <- profiles (files)
    tuning (the tuner and wisdom; plans, and settings of devices, that are run)
"""
