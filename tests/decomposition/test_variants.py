import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.layout import Digit
from dask_bigfft.decomposition.variants import VARIANTS, stored_order

N1, N2, N3 = (Digit(0, 4 ** (3 - i), 4, 4) for i in (1, 2, 3))
K1, K2, K3 = (Digit(1, 4 ** (i - 1), 4, 4) for i in (1, 2, 3))

#: The table of the module's text: what is stored while a digit is transformed, outermost first.
TABLE = {
    "dif": [[N2, N3], [K1, N3], [K1, K2], [K1, K2, K3]],
    "dit": [[N3, N2], [N3, K1], [K2, K1], [K3, K2, K1]],
    "stockham": [[N2, N3], [N3, K1], [K2, K1], [K3, K2, K1]],
    "pease": [[N2, N3], [N3, K1], [K1, K2], [K1, K2, K3]],
}


@pytest.mark.parametrize("variant", TABLE)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_table(variant, shuffle):
    for expected in TABLE[variant]:
        given_ = expected[::-1] if shuffle else expected
        assert stored_order(given_, variant, "natural") == expected


def test_auto_follows_the_order_of_the_result():
    for digits in ([N2, N3], [K1, N3], [K1, K2]):
        assert stored_order(digits, "auto", "transposed") == stored_order(digits, "dif", "natural")
        assert stored_order(digits, "auto", "natural") == stored_order(
            digits, "stockham", "natural"
        )


@given(
    digits=st.permutations([N2, N3, K1]),
    variant=st.sampled_from(VARIANTS),
    order=st.sampled_from(["natural", "transposed"]),
)
def test_nothing_is_lost_and_the_order_given_does_not_matter(digits, variant, order):
    found = stored_order(digits, variant, order)
    assert set(found) == set(digits)
    assert found == stored_order([N2, N3, K1], variant, order)


def test_no_digits_at_all():
    assert all(stored_order([], variant, "natural") == [] for variant in VARIANTS)
