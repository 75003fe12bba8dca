"""Prices agree with the loop: bytes that a forecast counts as copied are those that it copies."""

from collections import Counter
from dataclasses import replace

import dask
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.law import PLANNED, call, plan, planned

from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.kernels.libraries import available, get_library, usable
from dask_bigfft.planner.profile import PRICES, Profile
from dask_bigfft.testing.strategies import cases, round_cases

#: A machine on which a copied byte takes a second, and all that is counted with copies nothing.
#: Its libraries have not been measured.
COPIES = replace(Profile(), copy=1.0, **dict.fromkeys(PRICES & {"run", "move"}, 0.0))

#: Libraries that can write to another array, and one that cannot.
KERNELS = [name for name in ("scipy", "ducc0", "pyfftw") if name in available()]


def copied_bytes(result):
    """Bytes that the rounds of a transform copy, by their numbers, and the computed values.

    A result that is stored from a cache counts half.
    """
    copied = Counter()

    def sink(name, numbers):
        of_filter = "-" in str(numbers.get("plan"))
        if name in ("gather", "scatter") and not of_filter:
            copied[numbers["index"]] += numbers["nbytes"] * (0.5 if name == "scatter" else 1)

    add_sink(sink)
    try:
        result.compute(optimize_graph=False)
    finally:
        remove_sink(sink)
    return copied


def priced_bytes(case, array, **options):
    """Bytes that a plan counts as copied, by round, for rounds of blocks of one shape."""
    planned = plan(case, array, **options)
    machine = planned.machine
    forecast = planned.forecast(COPIES, threads=machine.threads)
    priced = {}
    for number, round_ in enumerate(planned.rounds, 1):
        source = round_.source
        if source.size == source.blocks * source.largest:
            priced[number] = forecast.rounds[number - 1].gather
    return priced, planned


any_case = st.one_of(cases(), round_cases())


@settings(max_examples=5 * settings.default.max_examples)
@given(
    case=any_case,
    kernel=st.sampled_from(KERNELS),
    in_place=st.booleans(),
    how=st.sampled_from(list(PLANNED)),
)
def test_prices_count_the_copies_of_the_loop(
    tiles,
    case,
    kernel,
    in_place,
    how,
):
    """What libraries read in place, and what they write to the result, costs no copy."""
    array = case.array
    shared = dask.config.set({"bigfft.exchange.in-place": in_place})
    with planned(how), shared:
        options = {"kernel": kernel, "device": "cpu"}
        priced, _ = priced_bytes(case, array, **options)
        copied = copied_bytes(call(case, array, **options))
    assert priced == pytest.approx({number: copied[number] for number in priced})


@given(case=any_case, mode=st.sampled_from(["energy", "checksum"]))
def test_prices_of_verified_rounds_know_that_blocks_are_kept(tiles, case, mode):
    """A tile may be repeated, so it is a copy; rounds without sums are done twice instead."""
    array = case.array
    with planned("split"):
        options = {"kernel": "scipy", "device": "cpu", "verify": mode}
        priced, verified_plan = priced_bytes(case, array, **options)
        copied = copied_bytes(call(case, array, **options))
    for number, nbytes in priced.items():
        steps = verified_plan.rounds[number - 1].steps
        chirps = any(step.chirp_in or step.chirp_out or step.convolve for step in steps)
        joins = any(step.kind == "c2r" for step in steps)
        if not chirps and not (joins and any(step.twiddle for step in steps)):
            assert (nbytes > 0) == (copied[number] > 0)


def test_unmeasured_libraries_write_where_those_of_this_machine_do():
    for name in usable():
        assert Profile().library(name, "complex128").supports_out == get_library(name).supports_out
