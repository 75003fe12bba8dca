"""`Plan`: what the planner returns, with its forecast, its explanation and its drawing.

Pure: imports this room.
"""

from dataclasses import replace

from dask_bigfft.errors import ArgumentTypeError, parse_count, refuse
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.drawing import draw
from dask_bigfft.planner.exchange import Exchange
from dask_bigfft.planner.explain import explain as explained
from dask_bigfft.planner.explain import in_a_line, summary
from dask_bigfft.planner.machine import Forecast, Machine
from dask_bigfft.planner.plan_data import PlanData, flattened, overwritten
from dask_bigfft.planner.profile import Profile

__all__ = ["Exchange", "Forecast", "Machine", "Plan", "flattened", "overwritten"]

#: Bytes of shards that a worker's shuffles hold in memory, as distributed is set by itself.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


class Plan(PlanData):
    """A transform laid out in rounds and exchanges, with its forecast: see `PlanData`."""

    def forecast(
        self, profile: Profile, *, workers: int = 1, threads: int = 1, cards: int = 0
    ) -> Forecast:
        """Return what the plan would need on another machine, which nobody has to have.

        What CPU threads and devices share is reckoned as done by devices alone, where there are
        some.

        Parameters
        ----------
        profile : Profile
            How fast it is.
        workers, threads : int
            Processes, and threads of each.
        cards : int
            Devices of each process.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Where a number is not whole, or below 1 (0 for `cards`).
        """
        for name, value, least in (
            ("workers", workers, 1),
            ("threads", threads, 1),
            ("cards", cards, 0),
        ):
            parse_count(name, value, least)
        if not isinstance(profile, Profile):
            refuse("profile", profile, "a Profile, as calibrate returns", kind=ArgumentTypeError)
        shared = self.machine.shared and workers == 1
        machine = Machine(None, threads, workers, SHUFFLE_BUFFERS, profile, cards, shared)
        return forecast(replace(self, machine=machine))

    def explain(self) -> str:
        """Return what was chosen, why, what it will need, and what else was considered."""
        return explained(self)

    def __str__(self) -> str:
        return summary(self)

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_html_(self) -> str:
        return draw(self)
