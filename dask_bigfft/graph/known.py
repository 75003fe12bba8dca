"""Plans of one source that share their first rounds.

Imports `planner`.
"""

import itertools
from dataclasses import dataclass

from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifts import ShiftPlan


@dataclass(frozen=True)
class Known:
    """A plan whose first rounds another one has in common with it, and its token.

    A spectrum and its shifted form share these rounds: their tasks have the same names.
    """

    plan: Plan
    token: str

    def shared(self, plan: Plan | ShiftPlan) -> int:
        """Number of first rounds that a plan of the same source has in common with this one."""
        if self.plan.source != plan.source or self.plan.inside:
            return 0
        pairs = zip(self.plan.rounds, plan.rounds, strict=False)
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        # A last round whose blocks are the result's flattens them, and has the result's name.
        ends = self.plan.ends_in_round or plan.ends_in_round
        return same - 1 if ends and same == len(plan.rounds) else same
