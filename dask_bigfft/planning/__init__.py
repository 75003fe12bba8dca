"""Planning of a call: arguments, environment, choice of a plan, and trials.

::

    arguments    checks a caller's arguments, makes a request and chooses its plan
    environment  describes the machine or cluster: workers, profile, FFT libraries
    tuning       runs candidate plans and device settings, and keeps the winners as wisdom
"""
