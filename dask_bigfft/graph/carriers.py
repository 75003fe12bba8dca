"""Which carrier a plan's exchanges take, which is settled where the graph becomes tasks.

Dask sends a graph to a cluster as it is, and the scheduler turns it into tasks: a layer that was
sent knows that blocks will lie in different processes. Where a graph becomes tasks before, as by
`dask.optimize`, `dask.delayed` and `to_delayed`, the client computes it if there is one. What is
then computed elsewhere after all, as by ``compute(scheduler="threads")``, works by `tasks`, and
else stops with an error that names the setting.

Imports `planner`, `exchange`, `events` and this room.
"""

import sys
import warnings
from functools import cache
from typing import Any

import dask.config

from dask_bigfft.errors import CarrierError
from dask_bigfft.events import current_worker
from dask_bigfft.graph.dask_private import array_expressions_enabled
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifts import ShiftPlan

__all__ = ["ON_GPUS", "p2p", "p2p_works", "resolved"]

#: Prefix of the carriers of blocks on GPUs of one process; the transport between GPUs follows.
ON_GPUS = "gpu/"

#: Shards of a plan up to which they are tasks where nobody knows what else is done to the graph.
FEW_SHARDS = 1 << 16


@cache
def _p2p() -> tuple[Any, str]:
    """Return the carrier `p2p`, or None and why it does not work with this distributed."""
    try:
        from dask_bigfft.exchange import p2p
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return None, str(error)
    return p2p, ""


def p2p() -> Any:
    """Return the carrier `p2p`."""
    found, reason = _p2p()
    if found is None:
        raise CarrierError(f"the carrier 'p2p' does not work with this distributed: {reason}")
    return found


@cache
def p2p_works() -> bool:
    """Return whether `p2p` works with the distributed that is installed; warn once if not."""
    found, reason = _p2p()
    if found is None:
        text = f"distributed's peer-to-peer shuffle is not as dask_bigfft knows it ({reason}): "
        text += "exchanges between processes travel as tasks"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found is not None


def resolved(carrier: str, plan: Plan | ShiftPlan, travelled: bool) -> str:
    """Return the carrier of tasks that are made here and now; ``"cluster"``: tasks or p2p.

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
    if not travelled and not _has_cluster():
        return carrier if on_gpus else "shared"
    if on_gpus:  # which only works within one process
        return "tasks"
    if travelled:  # what was sent to anything else than a scheduler becomes tasks too late for p2p
        found, _ = _p2p()
        return "cluster" if found is not None and found.on_scheduler() else "tasks"
    # Tasks may be given other names, and run anywhere; a shuffle knows its barrier by its name.
    shards = sum(exchange.shape.shards for exchange in plan.exchanges if not exchange.local)
    return "tasks" if shards <= FEW_SHARDS or current_worker() is not None else "cluster"


def _has_cluster() -> bool:
    """Return whether dask computes on a cluster here, if it is not told otherwise.

    That is where a client is the default, and in a task of a cluster. An expression that is sent to
    a scheduler of this process stays the object that it was: it may have been sent.
    """
    distributed, scheduler = sys.modules.get("distributed"), dask.config.get("scheduler", None)
    if distributed is None or (scheduler is not None and "distributed" not in str(scheduler)):
        return False
    try:
        return distributed.default_client() is not None
    except ValueError:
        if current_worker() is not None:
            return True
        return array_expressions_enabled() and p2p_works() and bool(p2p().on_scheduler())
