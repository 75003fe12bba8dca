"""What the variants promise, read off their plans, and that all of them give the same answer."""

import itertools

import dask
import dask.array as da
import pytest
from laws.law import exact_transform, geometry

import dask_bigfft
from dask_bigfft import plan, transposed_index
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

#: Length, rounds of an axis in 16 chunks.
LONG = {64: [4, 4, 4], 4096: [16, 16, 16]}
VARIANTS = ["dif", "dit", "stockham", "pease"]


def planned(n, variant, order):
    digits = LONG[n] if order == "transposed" else None
    x = da.zeros(n, chunks=n // 16, dtype=complex)
    return plan(
        x,
        "fft",
        rounds=LONG[n],
        variant=variant,
        order=order,
        digits=digits,
    )


def waiting(layout, stage):
    """Strides of the digits of a stage, outermost first, but for the one being transformed."""
    others = [d for group in layout.axes[0].groups[:-1] for d in group.digits]
    return [d.stride for d in others if d.stage == stage]


def is_reversed(strides):
    """Whether digits lie least significant first; a single one lies in either order."""
    return strides != sorted(strides, reverse=True)


@pytest.mark.parametrize(
    ("variant", "at_input", "at_output"),
    [
        ("dif", False, True),
        ("dit", True, False),
        ("stockham", False, False),
    ],
)
@pytest.mark.parametrize("n", LONG)
def test_where_digits_are_reversed(
    n,
    variant,
    at_input,
    at_output,
):
    variant_plan = planned(n, variant, "natural")
    first = variant_plan.rounds[0].source
    last = variant_plan.rounds[-1].target
    assert is_reversed(waiting(first, 0)) == at_input
    assert is_reversed(waiting(last, 1)) == at_output


@pytest.mark.parametrize("order", ["natural", "transposed"])
@pytest.mark.parametrize("n", LONG)
def test_only_pease_has_one_geometry(n, order):
    """The exchanges between rounds: Pease's all move digits alike, the others' do not."""
    for variant in VARIANTS:
        variant_plan = planned(n, variant, order)
        geometries = {geometry(exchange) for exchange in variant_plan.exchanges[1:3]}
        assert len(geometries) == (1 if variant == "pease" else 2)


#: Exchanges in which something travels, for 4096 = 16 x 16 x 16: blocks are cut along the
#: outermost waiting digit, and where that stays what it is, an exchange stays at home.
TRAVELLING = {
    ("dif", "natural"): 3,
    ("dit", "natural"): 3,
    ("stockham", "natural"): 4,
    ("pease", "natural"): 4,
    ("dif", "transposed"): 2,
    ("dit", "transposed"): 3,
    ("stockham", "transposed"): 4,
    ("pease", "transposed"): 3,
}


@pytest.mark.parametrize(("variant", "order"), TRAVELLING)
def test_exchanges_and_bytes(variant, order):
    n = 4096
    variant_plan = planned(n, variant, order)
    assert len(variant_plan.travelling) == TRAVELLING[variant, order]
    assert variant_plan.expected.bytes_exchanged == TRAVELLING[variant, order] * n * 16
    assert all(exchange.nbytes == n * 16 for exchange in variant_plan.exchanges)


@pytest.mark.parametrize(
    ("variant", "order", "name"),
    list(itertools.product([*VARIANTS, "auto"], ["natural", "transposed"], ["fft", "ifft"])),
)
def test_all_variants_give_the_same_answer(variant, order, name):
    n = 64
    rounds = [4, 4, 4]
    x = random_array((n,), "c16", 5)
    natural = exact_transform(name, x)
    index = transposed_index(n, digits=(4, 4, 4))
    options = {"rounds": rounds, "variant": variant, "order": order}
    options |= {"digits": (4, 4, 4)} if order == "transposed" else {}
    with dask.config.set(scheduler="sync"):
        if name == "ifft" and order == "transposed":  # the order is that of the spectrum
            y = dask_bigfft.fft.ifft(da.from_array(x[index], chunks=4), **options)
            assert relative_l2(y.compute(), natural) < 1e-15
            return
        y = getattr(dask_bigfft.fft, name)(da.from_array(x, chunks=4), **options)
        expected = natural[index] if order == "transposed" else natural
        assert relative_l2(y.compute(), expected) < 1e-15
