"""What the variants promise, read off their plans, and that all of them give the same answer."""

import itertools

import dask
import dask.array as da
import pytest
from laws.law import geometry

import dask_bigfft
from dask_bigfft import plan, transposed_index
from dask_bigfft.testing.oracles import exact_transform, relative_l2
from dask_bigfft.testing.strategies import random_array

#: Length, rounds of an axis in 16 chunks.
LONG = {64: [4, 4, 4], 4096: [16, 16, 16]}
VARIANTS = ["dif", "dit", "stockham", "pease"]


def signal(n):
    return da.from_array(random_array((n,), "c16", n), chunks=n // 16)


def waiting(layout, stage):
    """Strides of the digits of a stage, outermost first, but for the one being transformed."""
    others = [d for group in layout.axes[0].groups[:-1] for d in group.digits]
    return [d.stride for d in others if d.stage == stage]


def is_reversed(strides):
    """Whether digits lie least significant first; a single one lies in either order."""
    return strides != sorted(strides, reverse=True)


@pytest.mark.parametrize(
    ("variant", "at_input", "at_output"),
    [("dif", False, True), ("dit", True, False), ("stockham", False, False)],
)
@pytest.mark.parametrize("n", LONG)
def test_where_digits_are_reversed(n, variant, at_input, at_output):
    found = plan(signal(n), "fft", rounds=LONG[n], variant=variant)
    first, last = found.rounds[0].source, found.rounds[-1].target
    assert is_reversed(waiting(first, 0)) == at_input
    assert is_reversed(waiting(last, 1)) == at_output


@pytest.mark.parametrize("order", ["natural", "transposed"])
@pytest.mark.parametrize("n", LONG)
def test_only_pease_has_one_geometry(n, order):
    """The exchanges between rounds: Pease's all move digits alike, the others' do not."""
    for variant in VARIANTS:
        found = plan(signal(n), "fft", rounds=LONG[n], variant=variant, order=order,
                     digits=LONG[n] if order == "transposed" else None)
        geometries = {geometry(exchange) for exchange in found.exchanges[1:3]}
        assert len(geometries) == (1 if variant == "pease" else 2)


@pytest.mark.parametrize(("n", "rounds"), [(81, [3, 3, 3, 3]), (256, [4, 4, 4, 4])])
def test_one_geometry_for_four_digits(n, rounds):
    x = da.zeros(n, chunks=rounds[0] ** 2, dtype=complex)
    found = plan(x, "fft", rounds=rounds, variant="pease")
    assert len({geometry(exchange) for exchange in found.exchanges[1:4]}) == 1


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
    found = plan(signal(n), "fft", rounds=LONG[n], variant=variant, order=order,
                     digits=LONG[n] if order == "transposed" else None)
    assert len(found.travelling) == TRAVELLING[variant, order]
    assert found.expected.bytes_exchanged == TRAVELLING[variant, order] * n * 16
    assert all(exchange.nbytes == n * 16 for exchange in found.exchanges)


def test_transposed_order_saves_the_last_exchange_where_the_reversal_is_at_the_output():
    for variant, saved in [("dif", 1), ("pease", 1), ("stockham", 0), ("dit", 0)]:
        counts = [
            len(plan(signal(64), "fft", rounds=LONG[64], variant=variant, order=order,
                     digits=LONG[64] if order == "transposed" else None).travelling)
            for order in ("natural", "transposed")
        ]
        assert counts == [4, 4 - saved]


@pytest.mark.parametrize(
    ("variant", "order", "name"),
    list(itertools.product([*VARIANTS, "auto"], ["natural", "transposed"], ["fft", "ifft"])),
)
def test_all_variants_give_the_same_answer(variant, order, name):
    n, rounds = 64, [4, 4, 4]
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


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["rfft", "irfft"])
def test_variants_of_real_transforms(variant, name):
    n, rounds = 125, [5, 5, 5]
    x = random_array((n if name == "rfft" else n // 2 + 1,), "f8", 6)
    with dask.config.set(scheduler="sync"):
        y = getattr(dask_bigfft.fft, name)(
            da.from_array(x, chunks=9), n=n, rounds=rounds, variant=variant
        )
        assert relative_l2(y.compute(), exact_transform(name, x, (n,))) < 2e-15


@pytest.mark.parametrize("rounds", [[4, 4, 2], [2, 16], [{0: 8}, {0: 4}]])
def test_pease_refuses_unequal_factors(rounds):
    x = da.zeros(32, chunks=4, dtype=complex)
    with pytest.raises(ValueError, match="pease"):
        plan(x, "fft", rounds=rounds, variant="pease")


def test_pease_unaided_takes_equal_factors():
    x = da.zeros(4096, chunks=128, dtype=complex)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        found = plan(x, "fft", variant="pease")
    assert len(set(found.programs[0].factors)) == 1
    assert len(found.programs[0].factors) > 1


def test_unknown_variants_are_refused():
    with pytest.raises(ValueError, match=r"variant.*four-step.*stockham"):
        plan(da.zeros(16, chunks=4), "fft", variant="four-step")
