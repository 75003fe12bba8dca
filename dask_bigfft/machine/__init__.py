"""The machine and the cluster that will run a plan.

`environment` looks up workers, settings, libraries and the measured profile. `tuner` runs the best
plans by the model and keeps the fastest.
"""
