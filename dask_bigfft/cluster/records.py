"""What a cluster's workers have measured of a plan, brought to the client.

Imports `planning` and `record`.
"""

from typing import Any

from dask_bigfft.planning.environment import refuse_asynchronous
from dask_bigfft.record import RECORD, PlanRecord

__all__ = ["cluster_records"]


def cluster_records(client: Any, token: str) -> dict[str, PlanRecord]:
    """Return what each worker that is there has measured of a plan.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    token : str
        Of the plan in task names.
    """
    refuse_asynchronous(client)
    found = client.run(_record, token)
    return {address: record for address, record in found.items() if record is not None}


def _record(token: str, dask_worker: Any = None) -> PlanRecord | None:
    return RECORD.plan(token, str(dask_worker.address))
