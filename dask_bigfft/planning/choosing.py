"""From a request to the plan that is taken: by the model or by measuring, tiny blocks merged first.

Imports `planner`, `gpu`, `graph`, `config`, `tuning`; looks up devices.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial

from dask_bigfft import config
from dask_bigfft.errors import MemoryLimitError, PlanError
from dask_bigfft.gpu.find import count, known_nbytes
from dask_bigfft.graph.inside import inside_blocks, plan_within
from dask_bigfft.planner.merging import merged_request, roomy_request, with_merging
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.search import changes_that_fit, find_plan, larger_chunks_that_fit
from dask_bigfft.planner.work_sharing import decided
from dask_bigfft.planning.environment import running_client
from dask_bigfft.planning.tuning import SHARE, tuned_plan
from dask_bigfft.transforms.spec import TransformSpec

#: The search for a plan, which the same call need not do again.
_found_plan = lru_cache(maxsize=128)(find_plan)


@dataclass(frozen=True)
class Choice:
    """Options for the choice of a plan.

    Parameters
    ----------
    kernel : str or None
        FFT library as the caller named it.
    measure : bool
        Whether plans are tried.
    overwrite : bool
        Whether the contents of the array may be destroyed.
    """

    kernel: str | None = None
    measure: bool = False
    overwrite: bool = False


def chosen_plan(spec: TransformSpec, request: Request, machine: Machine, choice: Choice) -> Plan:
    """Return the plan that is taken for a transform.

    Very many tiny blocks are merged first, where the plan then fits into the same memory, and
    blocks of much padding are larger than those that come in.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    """
    tiny = config.get("bigfft.planner.min-chunk")
    request = roomy_request(spec, request, tiny)
    merged = merged_request(spec, request, machine, tiny)
    found = None if merged is None else _merged(spec, request, merged, machine, choice)
    try:
        found = found or _searched(spec, request, machine, choice)
    except PlanError as error:
        here = _with_devices(machine, request)
        raise type(error)(f"{error}{_changes(error, spec, request, here)}") from None
    found = replace(found, device_memory_limit=request.device_nbytes, overwrite=choice.overwrite)
    inside = choice.overwrite and found.machine.cards and machine.workers == 1
    return inside_blocks(found) if inside and found.carrier == "memory" else found


def _changes(error: PlanError, spec: TransformSpec, request: Request, machine: Machine) -> str:
    """Return changes after which there is a plan, where an error says that there is none."""
    if request.device == "hybrid":
        machine = replace(machine, cards=0)
    if isinstance(error, MemoryLimitError):
        return "".join(f", or {change}" for change in changes_that_fit(spec, request, machine))
    chunks = larger_chunks_that_fit(spec, request, machine)
    return "" if chunks is None else f"; there is one for an array in chunks of {chunks}"


def _merged(
    spec: TransformSpec, request: Request, merged: Request, machine: Machine, choice: Choice
) -> Plan | None:
    """The plan for merged blocks; None where it takes more memory than there is, or the disk."""
    try:
        found = _searched(spec, merged, machine, choice)
    except PlanError:
        return None
    outgoing = None if request.wanted == merged.wanted else request.wanted
    if outgoing is not None and found.chunks == outgoing:
        outgoing = None
    found = with_merging(found, request.chunks, outgoing)
    limit = machine.memory_limit
    if limit is not None and found.expected.peak_host > limit:
        return None
    unasked = found.carrier == "disk" and request.carrier == "auto"
    return None if unasked else found


def _searched(spec: TransformSpec, request: Request, machine: Machine, choice: Choice) -> Plan:
    """The best plan for blocks as they are."""
    here = _with_devices(machine, request)
    if request.device == "hybrid" and not here.cards:
        request = replace(request, device="cpu")  # no worker has a device
    tried = tuned_plan(spec, request, here, choice.kernel) if choice.measure else None
    if tried is not None:
        return tried
    found = _estimated(spec, request, here, choice)
    text = f"; not measured: array and result take more than {100 * SHARE:.0f} % of the memory"
    return replace(found, reason=found.reason + text) if choice.measure else found


def _estimated(spec: TransformSpec, request: Request, machine: Machine, choice: Choice) -> Plan:
    """The best plan for blocks as they are, by the model."""
    if request.device == "hybrid":
        least = config.get("bigfft.hybrid.min-speedup")
        return decided(spec, request, replace(machine, cards=0), machine.cards, least)
    search = partial(_found_plan, spec, request)
    inside = choice.overwrite and machine.cards and machine.workers == 1
    return plan_within(search, machine) if inside else search(machine)


def _with_devices(machine: Machine, request: Request) -> Machine:
    """Return a machine with the devices of each process that a plan is made for.

    On a cluster that is what workers have told: the least of it, unless each is to do with its own
    what it can. Where they have not, they are thought to have as many as are demanded.
    """
    known, device = [cards for cards, _ in machine.by_cards], request.device  # fewest first
    if device == "cpu":
        return replace(machine, by_cards=())
    limits = [n for n in (request.device_nbytes, known_nbytes()) if n is not None]
    if limits:
        devices = tuple(
            replace(one, nbytes=min(one.nbytes, *limits))
            for one in machine.profile.devices or (DeviceProfile(),)
        )
        machine = replace(machine, profile=replace(machine.profile, devices=devices))
    alike = replace(machine, by_cards=())
    if running_client() is None:
        return replace(alike, cards=count())
    if device == "hybrid" and len(known) > 1:
        return replace(machine, cards=max(known))
    least = int(device == "gpu" or (device == "hybrid" and not known))
    return replace(alike, cards=max([*known[:1], least]))
