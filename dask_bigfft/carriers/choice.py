"""The table of all carriers, and the choice of one for a graph.

Dask sends unmaterialised layers to a cluster, and the scheduler turns them into tasks. A layer that
has been pickled therefore knows that its blocks will be in different processes. A graph may become
tasks earlier, for example by `dask.optimize`, `dask.delayed` or `to_delayed`. It is then built for
the client, if there is one. If another scheduler computes it, as in
``compute(scheduler="threads")``, the carrier `tasks` works, and others raise an error that names
the setting.
"""

from collections.abc import Sequence

from dask_bigfft import config
from dask_bigfft.carriers.base import Carrier
from dask_bigfft.carriers.disk import Disk
from dask_bigfft.carriers.inside import Inside
from dask_bigfft.carriers.names import Cut, Names
from dask_bigfft.carriers.p2p import P2P, shuffle_module
from dask_bigfft.carriers.resident import ON_GPUS, Resident
from dask_bigfft.carriers.shared import Shared
from dask_bigfft.carriers.tasks import Tasks
from dask_bigfft.dask_private import uses_expressions
from dask_bigfft.events import current_worker, running_client, uses_clusters
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.planner.plan import Plan

#: Carriers by their names. What follows a slash in a name is for the carrier itself. For "auto",
#: which `resolved` replaces, it is the base class.
CARRIERS: dict[str, type[Carrier]] = {
    "auto": Carrier,
    "shared": Shared,
    "tasks": Tasks,
    "p2p": P2P,
    "disk": Disk,
    ON_GPUS.rstrip("/"): Resident,
}

#: Maximum number of shards of a plan that are tasks when the graph may still be renamed.
FEW_SHARDS = 1 << 16


def carrier_type(name: str) -> type[Carrier]:
    """Return the class of the carrier of a name."""
    return CARRIERS[name.partition("/")[0]]


def carrier_of(
    name: str,
    plan: Plan,
    names: Sequence[Names],
    is_named: bool,
    is_private: bool = False,
    place: ScratchPlace | None = None,
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
    return Inside(carrier) if plan.inside else carrier


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
    if travelled:  # p2p barriers must be made on the scheduler
        return "p2p" if _is_scheduler() else "tasks"
    # Tasks may be renamed and run anywhere; a shuffle finds its barrier by its name.
    shards = sum(exchange.shape.shards for exchange in plan.exchanges if not exchange.local)
    return "tasks" if shards <= FEW_SHARDS or current_worker() is not None else "p2p"


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
    """Return whether a scheduler that knows shuffles runs in this process."""
    shuffle = shuffle_module()
    return shuffle is not None and bool(shuffle.on_scheduler())
