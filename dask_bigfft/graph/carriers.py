"""Which carrier a plan's exchanges take: that depends on who turns the graph into tasks, and where.

Dask sends a graph to a cluster as it is, and the scheduler turns it into tasks; a layer that was
sent knows that blocks will lie in different processes. Where a graph is turned into tasks before,
as by `dask.optimize`, `dask.delayed` and `to_delayed`, nobody can know who will compute it. If
there is a client it will be the client, unless a scheduler of dask's own is what asks.

Imports `planner`, `exchange`, `record` and this room.
"""

import sys

import dask.config

from dask_bigfft.exchange import p2p
from dask_bigfft.graph.dask_private import asking
from dask_bigfft.graph.weave import ON_GPUS
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifts import ShiftPlan
from dask_bigfft.record import current_worker

__all__ = ["resolved"]

#: Shards of a plan up to which they are tasks where nobody knows what else is done to the graph.
FEW_SHARDS = 1 << 16


def resolved(carrier: str, plan: Plan | ShiftPlan, travelled: bool) -> str:
    """Return the carrier of tasks that are made here and now.

    Parameters
    ----------
    carrier : str
        What is wanted, as a `PlanLayer` has it.
    plan : Plan or ShiftPlan
        What is to be done.
    travelled : bool
        Whether the graph has been sent to another process.
    """
    on_gpus = carrier.startswith(ON_GPUS)
    if carrier != "auto" and not on_gpus:
        return carrier
    asker = asking()
    ours = asker is None and _has_cluster()
    if on_gpus:  # which only works within one process
        return "tasks" if travelled or ours or asker == "cluster" else carrier
    if asker == "cluster":
        return "cluster"
    if asker == "local" or not (ours or travelled):
        return "shared"
    if ours:
        # Tasks may be given other names, and run anywhere; a shuffle knows its barrier by its name.
        return "tasks" if _shards(plan) <= FEW_SHARDS else "cluster"
    # What was pickled for anything else than a cluster turns into tasks where nobody can shuffle.
    return "cluster" if p2p.on_scheduler() else "tasks"


def _shards(plan: Plan | ShiftPlan) -> int:
    return sum(exchange.shape.shards for exchange in plan.exchanges if not exchange.local)


def _has_cluster() -> bool:
    """Whether dask computes on a cluster what it is asked for here, if it is not told otherwise.

    That is where a client is the default, and in a task of a cluster.
    """
    distributed, scheduler = sys.modules.get("distributed"), dask.config.get("scheduler", None)
    if distributed is None or (scheduler is not None and "distributed" not in str(scheduler)):
        return False
    try:
        return distributed.default_client() is not None
    except ValueError:
        return current_worker() is not None
