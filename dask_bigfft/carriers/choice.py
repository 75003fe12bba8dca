"""The table of all carriers, and the choice of one for a graph.

Dask sends unmaterialised layers to a cluster, and the scheduler turns them into tasks. A layer that
has been pickled therefore knows that its blocks will be in different processes. A graph may become
tasks earlier, for example by `dask.optimize`, `dask.delayed` or `to_delayed`. It is then built for
the client, if there is one. If another scheduler computes it, as in
``compute(scheduler="threads")``, the carrier `tasks` works, and others raise an error that names
the setting.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from dask_bigfft import config
from dask_bigfft.carriers.base import Carrier
from dask_bigfft.carriers.names import ON_GPUS, Cut, Names
from dask_bigfft.dask_private import uses_expressions
from dask_bigfft.events import current_worker, running_client, schedulers_here, uses_clusters
from dask_bigfft.planner.plan import Plan

if TYPE_CHECKING:
    from dask_bigfft.exchange.scratch import ScratchPlace

#: File of this room and class of each carrier, imported when it is chosen. What follows a slash in
#: a name is for the carrier itself.
CARRIERS: dict[str, tuple[str, str]] = {
    "auto": ("base", "Auto"),
    "shared": ("shared", "Shared"),
    "tasks": ("tasks", "Tasks"),
    "p2p": ("p2p", "P2P"),
    "disk": ("disk", "Disk"),
    ON_GPUS.rstrip("/"): ("resident", "Resident"),
}

#: Maximum number of shards of a plan that are tasks when the graph may still be renamed.
FEW_SHARDS = 1 << 16


@cache
def carrier_type(name: str) -> type[Carrier]:
    """Return the class of the carrier of a name."""
    file, class_name = CARRIERS[name.partition("/")[0]]
    carrier: type[Carrier] = getattr(import_module(f"dask_bigfft.carriers.{file}"), class_name)
    return carrier


def carrier_of(
    name: str,
    plan: Plan,
    names: Sequence[Names],
    is_named: bool,
    is_private: bool = False,
    place: "ScratchPlace | None" = None,
    cuts: Sequence[Cut] | None = None,
) -> Carrier:
    """Return the carrier of a plan's exchanges; for the parameters see `Carrier`."""
    carrier = carrier_type(name)(
        name,
        plan,
        names,
        is_named,
        is_private=is_private,
        place=place,
        cuts=cuts,
    )
    if not plan.inside:
        return carrier

    from dask_bigfft.carriers.inside import Inside

    return Inside(carrier)


def requested_carrier(carrier: str, plan: Plan, blocks_on_gpus: bool) -> str:
    """Return the carrier to record in a graph: ``"auto"``, unless user, blocks or plan decide.

    Blocks on GPUs of one process are gathered from GPU to GPU unless another carrier is requested.
    """
    if blocks_on_gpus:
        if carrier != "auto":
            return carrier
        transport = config.get("bigfft.gpu.peer-transport")
        return "tasks" if transport == "none" else f"{ON_GPUS}{transport}"
    if plan.storage == "disk":
        return "disk"
    return carrier


def resolved(carrier: str, plan: Plan, travelled: bool) -> str:
    """Return the carrier for tasks that are built now.

    Parameters
    ----------
    carrier : str
        Requested carrier, as in a `PlanLayer`.
    plan : Plan
        Plan of the tasks.
    travelled : bool
        Whether the graph has been sent to another process.
    """
    is_on_gpus = carrier_type(carrier).is_on_gpus
    if carrier != "auto" and not is_on_gpus:
        return carrier
    if not travelled and not _has_cluster():
        return carrier if is_on_gpus else "shared"
    if is_on_gpus:  # GPU transports only work within one process
        return "tasks"
    return _carrier_of_cluster(plan, travelled)


def _carrier_of_cluster(plan: Plan, travelled: bool) -> str:
    """Return the carrier for tasks that run on a cluster: a shuffle if it is possible and pays."""
    if travelled:  # p2p barriers must be made on the scheduler
        return "p2p" if _is_scheduler() else "tasks"
    if current_worker() is not None:
        # Tasks may be renamed and run anywhere; a shuffle finds its barrier by its name.
        return "tasks"
    shards = sum(exchange.shape.shards for exchange in plan.exchanges if not exchange.local)
    return "p2p" if shards > FEW_SHARDS else "tasks"


def _has_cluster() -> bool:
    """Return whether dask computes on a cluster by default here.

    It does where a client is the default, and in a task of a cluster. An expression that is sent to
    a scheduler of this process is not pickled, so the scheduler counts as well.
    """
    if not uses_clusters():
        return False
    if running_client() is not None or current_worker() is not None:
        return True
    return uses_expressions() and _is_scheduler()


def _is_scheduler() -> bool:
    """Return whether a scheduler that knows shuffles runs in this process.

    Shuffles are tried where there is a scheduler: a failure is no news for users of threads.
    """
    if not schedulers_here():
        return False

    from dask_bigfft.carriers.p2p import shuffle_module

    return shuffle_module() is not None
