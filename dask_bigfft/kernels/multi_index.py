"""An index over several dimensions, which compiled loops advance in C order."""

from dask_bigfft.kernels.compiled import compiled


@compiled
def advance(  # type: ignore[no-untyped-def]
    index,
    count,
    first_step,
    second_step,
):
    """Advance an index in place; return by how much two places change.

    The steps are those of each place along each dimension. After the last index comes the first.
    """
    first = 0
    second = 0
    for d in range(len(index) - 1, -1, -1):
        index[d] += 1
        first += first_step[d]
        second += second_step[d]
        if index[d] < count[d]:
            break
        index[d] = 0
        first -= count[d] * first_step[d]
        second -= count[d] * second_step[d]
    return first, second
