"""A plan as a drawing for notebooks.

Pure: imports `plan` of this room.
"""

from dask_bigfft.planner.plan import Plan


def draw(plan: Plan) -> str:
    """Return the plan as HTML."""
    return f"<pre>{plan.notation}</pre>"
