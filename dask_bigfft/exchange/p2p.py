"""The carrier `p2p`: an exchange that distributed's peer-to-peer shuffle carries.

Its tasks are few (one for each source block and each target block, and a barrier), and shards wait
in memory of the workers as far as there is room, and else in their files, so that it takes neither
many tasks nor much memory.

Imports `errors`, and `p2p_spec` where distributed is as `p2p_private` expects it.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, cast

import dask.config

from dask_bigfft.errors import CarrierError, ScratchError
from dask_bigfft.exchange.p2p_shards import Array, Block, Pack, StorageError

#: How often a worker asks the scheduler of a shuffle before a lost connection is an error.
MOST_ASKED = 3

_private: ModuleType | None
try:
    from dask_bigfft.exchange import p2p_private, p2p_run, p2p_spec

    _private, _reason = p2p_private, ""
except (ImportError, AttributeError, TypeError, ValueError) as error:  # has moved, or is another
    _private, _reason = None, str(error)


@cache
def usable() -> bool:
    """Whether this carrier works with the distributed that is installed; warns once if not."""
    if _private is None:
        text = f"distributed's peer-to-peer shuffle is not as dask_bigfft knows it ({_reason}): "
        text += "exchanges between processes travel as tasks"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return _private is not None


def on_scheduler() -> bool:
    """Whether a scheduler runs in this process, as where a graph that was sent turns into tasks.

    A graph that was pickled for anything else turns into tasks where nobody can shuffle.
    """
    return _private is not None and bool(_private.scheduler_runs())


def _names() -> Any:
    if _private is None:
        raise CarrierError(f"the carrier 'p2p' does not work with this distributed: {_reason}")
    return _private


def _asked(call: Callable[[], Any]) -> Any:
    """Return what a call returns that asks the scheduler, and may do so again.

    Distributed sends shards again where a connection is lost, but asks the scheduler only once. Who
    asks again gets a new connection, which distributed in turn tries to make for a while.
    """
    lost = _names().CommClosedError
    for _ in range(MOST_ASKED - 1):
        try:
            return call()
        except Exception as error:
            if not isinstance(error, lost) and not isinstance(error.__cause__, lost):
                raise
    return call()


@contextlib.contextmanager
def _storage_named() -> Iterator[None]:
    """Raise what a worker's files could not keep as a `ScratchError`, which names the file."""
    kind = StorageError
    try:
        yield
    except RuntimeError as error:
        # Distributed says in which phase it was, and why.
        cause = error if isinstance(error, kind) else error.__cause__
        if isinstance(cause, kind):
            raise ScratchError(*cause.args) from cause
        raise


def barrier(shuffle: str, attempts: list[int]) -> int:
    """Wait until everything has arrived that was sent; return the number of the attempt.

    Raises
    ------
    ScratchError
        Here, in `transfer` or in `collect`, if a worker cannot keep shards: which file, and how
        many bytes are missing.
    """
    with _storage_named():
        return int(_asked(lambda: _names().p2p_barrier(shuffle, *attempts)))


def barrier_task(
    shuffle: str, function: Callable[..., int], transfers: list[Any], **what: Any
) -> Any:
    """Return the barrier of a shuffle, a task with a key of its own.

    Parameters
    ----------
    shuffle : str
        Name of the shuffle: different for each group of each exchange.
    function : callable
        What it runs, given the name and what the transfer tasks return; it ends in `barrier`.
    transfers : list of TaskRef
        All transfer tasks.
    **what
        `targets`, `before`, `turns`, `plan`, `number`, `together` and `output`, as a
        `p2p_spec.Spec` has them.
    """
    names = _names()
    disk = bool(dask.config.get("distributed.p2p.storage.disk", default=True))
    spec = p2p_spec.Spec(id=cast("Any", shuffle), disk=disk, **what)
    key = names.barrier_key(shuffle)
    return names.P2PBarrierTask(key, function, shuffle, *transfers, spec=spec)


def _plugin() -> Any:
    try:
        return _names().get_worker_plugin()
    except RuntimeError as error:
        raise CarrierError(
            "the carrier 'p2p' works on the workers of a cluster only, and this graph runs "
            "elsewhere: set bigfft.exchange.carrier to 'auto' and build it again"
        ) from error


def transfer(shuffle: str, source: Block, pack: Pack) -> int:
    """Send what a source block gives away; return the number of the attempt.

    Parameters
    ----------
    shuffle : str
        Name of the shuffle.
    source : tuple of int
        Which block.
    pack : callable
        Called with what gives the owner of a target block, and with the target blocks along each
        axis, returns for each owner its target blocks, the bounds of their shards, the shards in
        one array, and their checksums. An owner is another worker, or those blocks of this one
        whose shards wait together.
    """
    plugin = _plugin()
    with _storage_named(), _names().handle_transfer_errors(shuffle):
        run = _asked(lambda: plugin.get_or_create_shuffle(shuffle))
        return int(run.add_partition(pack, partition_id=source))


def collect(shuffle: str, attempt: int, block: Block) -> dict[Block, tuple[Array, int]]:
    """Return the packed shards of a target block and their checksums, by source.

    They are aligned in memory, and wait until they are released.

    Raises
    ------
    Reschedule
        On another worker than the block's, where the task is then sent to.
    """
    plugin = _plugin()
    with _storage_named(), _names().handle_unpack_errors(shuffle):
        found = _asked(lambda: plugin.get_output_partition(shuffle, attempt, block))
        return {tuple(source): (shard, checksum) for source, checksum, shard in found}


def release(shuffle: str, attempt: int, block: Block) -> None:
    """Let go of what was collected for a block, which has been put together."""
    worker = _plugin().worker.address
    p2p_run.release(worker, shuffle, attempt, block)
