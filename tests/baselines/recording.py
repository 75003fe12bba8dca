"""What is recorded of the package that is imported: plans and texts of requests."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .bits import installed
from .environments import by_cluster, cluster_of, empty_folder
from .records import explained, has_plan, record_of
from .requests import NUMBERS, Request, request

#: Requests whose explanation is recorded: every so many of those that have a plan.
TEXT_EVERY = 16


def explained_numbers() -> list[int]:
    """Return the numbers of the requests whose explanation is recorded."""
    numbers = [number for number in NUMBERS if has_plan(request(number))]
    return numbers[::TEXT_EVERY]


def can_run(asked: Request) -> bool:
    """Return whether the libraries that a request needs are installed."""
    if asked.kind == "refused":
        return True
    if asked.kind == "files" and not installed("zarr"):
        return False
    kernel = asked.arguments.get("kernel", "scipy")
    return bool(installed(kernel))


def recorded(numbers: Iterable[int], record: Any) -> dict[str, Any]:
    """Return what `record` makes of each request and a folder, by number.

    Requests that need a library that is not installed are left out.
    """
    requests = [request(number) for number in numbers]
    possible = [asked for asked in requests if can_run(asked)]
    results: dict[str, Any] = {}
    with empty_folder() as folder:
        for (workers, threads), members in by_cluster(possible).items():
            several = workers > 1
            cluster = cluster_of(workers, threads) if several else contextlib.nullcontext()
            with cluster:
                for asked in members:
                    results[str(asked.number)] = record(asked, folder)
    return results


def plan_record(asked: Request, folder: Path) -> dict[str, str]:
    """Return the record of a request, with its text."""
    return {"request": asked.text, **record_of(asked, folder)}


def plans(numbers: Iterable[int] = NUMBERS) -> dict[str, Any]:
    """Return the records of requests."""
    return recorded(numbers, plan_record)


def texts() -> dict[str, Any]:
    """Return explanations of plans."""
    return recorded(explained_numbers(), explained)
