"""Answers of a cluster's workers to questions that planning has; each worker is asked once.

Imports no other room.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["workers_answers", "workers_of"]

#: Seconds that workers have to answer, and those that have not when they are asked again: they may
#: have to import the package first, on a machine that is busy.
PATIENCE = (10.0, 30.0)

#: Seconds for which no worker of a cluster is asked after one of them has not answered.
PAUSE = 60.0

#: Question, address and folder of a worker; the folder is another one after a restart.
_Key = tuple[Callable[..., Any], str, str]

#: By client: the answers of its workers.
_known: WeakKeyDictionary[Any, dict[_Key, Any]] = WeakKeyDictionary()

#: By client: until when its workers are not asked again.
_paused: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def workers_of(client: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the scheduler's information on each worker, by address."""
    found: Mapping[str, Mapping[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def workers_answers(client: Any, ask: Callable[..., Any]) -> dict[str, Any]:
    """Return the answer of each worker by address; None for those that have not answered.

    A worker that is slow is asked a second time, with more patience. One that has gone meanwhile is
    left out, and one that has come is asked.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    ask : callable
        Of a module, so that workers find it. It takes no arguments but `dask_worker`, does not
        return None, and is called in the worker's event loop.
    """
    workers, known = workers_of(client), _known.setdefault(client, {})
    asks = not client.asynchronous and time.monotonic() >= _paused.get(client, 0.0)
    for seconds in PATIENCE if asks else ():
        if unknown := _without_answer(known, ask, workers):
            found = client.sync(_answers, client, ask, unknown, seconds)
            known |= {_key(ask, address, workers[address]): found[address] for address in found}
            workers = workers_of(client)
    if asks and _without_answer(known, ask, workers):
        _paused[client] = time.monotonic() + PAUSE
    there = {_key(key[0], address, worker) for key in known for address, worker in workers.items()}
    for key in known.keys() - there:
        del known[key]
    return {address: known.get(_key(ask, address, worker)) for address, worker in workers.items()}


def _without_answer(
    known: Mapping[_Key, Any], ask: Callable[..., Any], workers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    return [
        address for address, worker in workers.items() if _key(ask, address, worker) not in known
    ]


def _key(ask: Callable[..., Any], address: str, worker: Mapping[str, Any]) -> _Key:
    return ask, address, str(worker.get("local_directory"))


async def _answers(
    client: Any, ask: Callable[..., Any], addresses: Iterable[str], seconds: float
) -> dict[str, Any]:
    """Answers of workers by address, without those that are late, lost or fail."""
    found = {}

    async def one(address: str) -> None:
        with contextlib.suppress(OSError):  # also TimeoutError
            call = client.run(ask, workers=[address], on_error="return")
            answer = (await asyncio.wait_for(call, seconds)).get(address)
            if answer is not None and not isinstance(answer, BaseException):
                found[address] = answer

    await asyncio.gather(*map(one, addresses))
    return found
