"""A plan in words: its rounds and exchanges, why it was chosen, what it will need.

Pure: imports `plan` of this room.
"""

from dask_bigfft.planner.plan import Plan


def summary(plan: Plan) -> str:
    """Return the rounds in I/O-tensor notation, with C and W of each exchange."""
    return f"{plan.spec.name}: {plan.notation}"


def explain(plan: Plan) -> str:
    """Return what was chosen, why, and what it will need."""
    return summary(plan)
