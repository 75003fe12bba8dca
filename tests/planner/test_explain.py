"""A plan in words and as a drawing: the numbers in them are the plan's, and they are quick."""

import itertools
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize

import dask_bigfft
from dask_bigfft.graph.run import Run
from dask_bigfft.planner import explain, wording
from dask_bigfft.planner.drawing import digit_name, draw
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import Profile

TENSOR = re.compile(r"d\((\d+), (\d+), (\d+)\)")
LIMIT = {"memory_limit": "100 TiB"}


def plan(shape, cut, dtype="c16", kind="fftn", **options):
    return dask_bigfft.plan(da.zeros(shape, chunks=cut, dtype=dtype), kind, **LIMIT | options)


@pytest.fixture(scope="module")
def two_rounds():
    return plan(4096, 256, kind="fft", rounds=[32, 128])


@pytest.fixture(scope="module")
def slabs():
    return plan((64, 64, 64), (8, -1, -1), "c8", rounds=[{1: 64, 2: 64}, {0: 64}])


@pytest.fixture(scope="module")
def prime():
    return plan(1_000_003, 62_501, kind="fft")


@pytest.fixture(scope="module")
def real():
    return plan(2**16, 2**12, "f4", kind="rfft", rounds=[256, 256])


@pytest.fixture(scope="module")
def many():
    return plan(2**28, 2**16, kind="fft")


PLANS = ["two_rounds", "slabs", "prime", "real", "many"]


def lines_of(text, start):
    """Lines that begin with a word, each with those that carry it on."""
    joined = text.replace("\n" + " " * 12, " ")
    return [line.strip() for line in joined.splitlines() if line.startswith(f"  {start}")]


def tensors(found, number):
    text = lines_of(str(found), f"round {number}")[0]
    return [tuple(map(int, group)) for group in TENSOR.findall(text)]


def transform_by_tensors(values, steps):
    """The one-dimensional FFT in two steps, read and written as the notation says."""
    (n1, i1, o1), (n2, i2, o2) = steps
    out = np.zeros_like(values)
    for rest in range(n2):
        column = np.fft.fft(values[rest * i2 + i1 * np.arange(n1)])
        column *= np.exp(-2j * np.pi * np.arange(n1) * rest / (n1 * n2))
        for k1 in range(n1):
            out[k1 * o1 + o2 * np.arange(n2)] += column[k1] * np.exp(
                -2j * np.pi * rest * np.arange(n2) / n2
            )
    return out


def test_the_tensors_of_two_rounds_are_the_transform(two_rounds):
    steps = [*tensors(two_rounds, 1), *tensors(two_rounds, 2)]
    assert steps == [(32, 128, 1), (128, 1, 32)]
    assert "d(32, 128, 1) t_4096" in str(two_rounds)
    values = np.random.default_rng(0).normal(size=4096) + 0j
    np.testing.assert_allclose(transform_by_tensors(values, steps), np.fft.fft(values), atol=1e-9)


def test_slabs_have_one_exchange_with_the_papers_numbers(slabs):
    text = str(slabs)
    assert tensors(slabs, 1) == [(64, 64, 64), (64, 1, 1)]
    assert tensors(slabs, 2) == [(64, 4096, 4096)]
    (local,), (exchange,) = lines_of(text, "local"), lines_of(text, "exchange")
    assert local.endswith("nothing travels")
    assert exchange == (
        "exchange  8 blocks (8, 64, 64) -> 8 blocks (64, 8, 64), 1 group, fan-in 8, C = 64, "
        "W = 512 (4.00 KiB), moves 2.00 MiB"
    )
    assert "result    8 chunks by axis {0: 64; 1: 8 x 8; 2: 64}" in text


def test_bluestein_shows_chirps_and_the_convolution(prime):
    text = str(prime)
    program = prime.programs[0]
    padded, (first, last) = math.prod(program.factors), program.factors
    assert padded >= 2 * 1_000_003 - 1
    assert f"as a convolution of length {padded} = {first} x {last} (Bluestein)" in text
    assert f"chirp d({first}, {last}, 1) t_{padded}" in text
    assert f"d({last}, 1, 1) convolve t_{padded}" in text
    assert f"d({first}, 1, {last}) chirp" in text


def test_real_input_moves_half_the_bytes(real):
    text = str(real)
    assert text.startswith("rfft of (65536,) float32 (256 KiB) into (32769,) complex64 (256 KiB)")
    assert "d(256, 256, 1) r2c t_65536" in text
    assert sum("half a spectrum is mirrored" in line for line in lines_of(text, "exchange")) == 1


@pytest.mark.parametrize("name", PLANS)
def test_each_exchange_says_what_the_plan_has(name, request):
    found = request.getfixturevalue(name)
    lines = [s for s in map(str.split, str(found).splitlines()) if s]
    kinds = [s[0] for s in lines if s[0] in ("local", "exchange", "round", "result")]
    wanted = ["local" if e.local else "exchange" for e in found.exchanges]
    rounds = ["round"] * len(found.rounds)
    pairs = itertools.zip_longest(wanted, rounds)
    assert kinds == [k for pair in pairs for k in pair if k is not None] + ["result"]
    for exchange, line in zip(found.travelling, lines_of(str(found), "exchange"), strict=True):
        shape = exchange.shape
        assert f"fan-in {shape.fan_in}, C = {shape.runs}, W = {shape.width} (" in line
        assert f"{shape.groups} group" in line
        assert line.endswith(f"moves {wording.human_bytes(exchange.nbytes)}")


@pytest.mark.parametrize("name", PLANS)
def test_the_width_in_bytes_is_that_of_the_source(name, request):
    found = request.getfixturevalue(name)
    sizes = explain.item_sizes(found)
    for number, exchange in enumerate(found.exchanges):
        if number == 0:
            assert sizes[number] == np.dtype(found.spec.dtype).itemsize
        if not exchange.local:
            width = exchange.shape.width * sizes[number]
            assert f"({wording.human_bytes(width)})" in str(found)


@pytest.mark.parametrize("name", PLANS)
def test_no_line_is_longer_than_a_hundred_columns(name, request):
    found = request.getfixturevalue(name)
    text = found.explain()
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(str(found))
    assert str(found) == explain.summary(found)


def test_explain_has_reason_forecast_and_runners_up():
    found = plan((64, 64, 64), (8, -1, -1), "c8")
    text = found.explain()
    forecast = found.expected
    assert f"why: {found.reason}" in text
    assert f"{forecast.tasks}\n" in text
    assert wording.human_bytes(forecast.bytes_exchanged) in text
    assert wording.human_seconds(forecast.seconds) in text
    assert f"{wording.human_bytes(forecast.peak_host)} of 100 TiB" in text
    assert found.rejected
    for (name, other), row in zip(found.rejected, explain.rejected_rows(found)[1:], strict=True):
        assert row[0] == name
        assert row[3] == str(other.tasks)
        assert float(row[5]) == pytest.approx(other.seconds / forecast.seconds, abs=0.006)
        assert f"    {name} " in text


@pytest.mark.parametrize("name", PLANS)
def test_the_table_of_rounds_has_what_each_is_forecast_to_take(name, request):
    """Each exchange with its round has a row, and what rows take is what the plan takes."""
    found = request.getfixturevalue(name)
    if name == "slabs":  # as on several machines, between which blocks travel
        found = replace(found, expected=found.forecast(Profile(), workers=8, threads=2))
        assert found.expected.rounds[-1].travel
    rounds, text = found.expected.rounds, found.explain()
    assert sum(one.seconds for one in rounds) == pytest.approx(found.expected.seconds, rel=1e-6)
    table = text.partition("forecast by round")[2].partition("\n\n")[0]
    told = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[1:]]
    numbers = [cells[-7:] for cells in told if len(cells) > 6]  # a long name has lines of its own
    assert len(numbers) == len(rounds) == len(found.exchanges)
    for cells, one in zip(numbers, rounds, strict=True):
        parts = one.gather, one.fft, one.device * one.blocks, one.travel, one.scheduling
        wanted = [one.seconds, *parts]
        assert cells[:6] == [wording.human_seconds(part) if part else "-" for part in wanted]
        assert cells[6] == one.bound
    for number, digits in enumerate(explain.round_names(found), 1):
        assert f"round {number} {{{digits}}}" in " ".join(table.split())


def test_what_preserve_costs_is_what_it_costs(slabs):
    note = explain.preserved(slabs)
    kept = plan((64, 64, 64), (8, -1, -1), "c8", rounds=[{1: 64, 2: 64}, {0: 64}],
                chunks="preserve")
    more = kept.exchanges[-1]
    assert len(kept.travelling) == len(slabs.travelling) + 1
    assert f"{wording.human_bytes(more.nbytes)}, C = {more.shape.runs}, " in note
    assert f"W = {more.shape.width} (" in note
    assert "costs nothing" in explain.preserved(kept)
    assert explain.preserved(plan(64, 8, kind="fft", n=128)) is None


HUGE = [
    ((2**28,), 2**16, "fft"),
    ((16384, 16384, 16384), (256, 256, -1), "fftn"),
]


@pytest.mark.parametrize(("shape", "chunks", "kind"), HUGE)
def test_a_plan_of_4096_blocks_prints_in_a_second(shape, chunks, kind):
    found = plan(shape, chunks, "c8", kind)
    assert found.source.blocks == 4096
    started = time.process_time()  # some milliseconds, however busy the machine is
    text, html = found.explain(), found._repr_html_()
    assert time.process_time() - started < 1
    assert len(text) < 8000
    assert len(html) < 60_000
    assert "4096 blocks" in text


class Checker(HTMLParser):
    """Counts elements, and refuses what is not closed or comes from outside."""

    VOID = ()

    def __init__(self):
        super().__init__()
        self.open, self.count, self.texts = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe", "style")
        assert not any(k.startswith("on") or k in ("src", "href") for k, _ in attrs)
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def checked(html):
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("name", PLANS)
def test_the_drawing_is_well_formed_and_has_every_exchange(name, request):
    found = request.getfixturevalue(name)
    checker = checked(found._repr_html_())
    assert found._repr_html_() == draw(found)
    for number, round_ in enumerate(explain.round_names(found), 1):
        assert f"round {number} {{{round_}}}" in checker.texts
    for exchange in found.travelling:
        assert f"C = {exchange.shape.runs}" in checker.texts
    assert checker.texts.count("exchange") == len(found.travelling)
    assert checker.texts.count("local") == len(found.exchanges) - len(found.travelling)


def test_the_drawing_names_digits_and_cuts(two_rounds):
    texts = checked(draw(two_rounds)).texts
    assert "n1 → k1: 32" in texts
    assert "n2 → k2: 128" in texts
    assert "n: 4096" in texts
    assert "k: 4096" in texts
    assert texts.count("16 parts") >= 3


def test_bluesteins_digits_have_names_of_their_own(prime):
    program = prime.programs[0]
    names = [digit_name(program, step.target) for step in program.steps]
    assert names == ["m1", "k2", "k3"]


def test_text_in_the_drawing_is_escaped(two_rounds):
    html = draw(replace(two_rounds, reason="<script>alert(1)</script> & more"))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    checked(html)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (10 * 2**20, "10.0 MiB"),
     (2**40 - 1, "1.00 TiB"), (2**60, "1024 PiB")],
)
def test_bytes_have_a_unit(nbytes, text):
    assert wording.human_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 us"), (5e-6, "5.00 us"), (0.9999, "1.00 s"), (99.99, "1 min 40 s"),
     (3599.9, "1 h 00 min")],
)
def test_seconds_have_a_unit(seconds, text):
    assert wording.human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("peak", "limit", "part"),
    [(3 << 30, 16 << 30, "18.8 %"), (100 << 10, 16 << 30, "below 0.1 %"), (1, 1, "100 %")],
)
def test_parts_of_the_budget_are_said_in_few_digits(two_rounds, peak, limit, part):
    found = replace(
        two_rounds, expected=replace(two_rounds.expected, peak_host=peak),
        machine=replace(two_rounds.machine, memory_limit=limit),
    )
    assert f"({part})" in explain.budget_text(found)


def test_an_array_without_elements_has_a_plan_to_print():
    found = plan((0, 8), 2, kind="fft")
    assert "moves 0 B" in str(found) or "nothing travels" in str(found)
    checked(draw(found))
    assert max(map(len, found.explain().splitlines())) <= 100


def test_where_rounds_are_done_is_said_if_it_was_asked_for(two_rounds):
    assert "rounds on" not in two_rounds.explain()
    here = plan(4096, 256, kind="fft", device="cpu", device_memory_limit="2 GiB", overwrite_x=True)
    assert explain.placed(here) == "; rounds on the cpu; the input may be overwritten"
    assert "rounds on the cpu" in here.explain()
    there = plan(4096, 256, kind="fft", device_memory_limit="2 GiB")
    assert explain.placed(there) == "; at most 2.00 GiB of a GPU's memory"


def test_a_prompt_shows_a_line_and_tokens_know_all() -> None:
    plan = dask_bigfft.plan(da.zeros(2**16, chunks=2**12, dtype="c16"), "fft", rounds=[256, -1])
    assert re.fullmatch(
        r"<Plan \{X1\} \{X2\}: fft of \(65536,\) complex128, 3 exchanges, \S+ \S+ per process, "
        r"\S+ \S+>", repr(plan)
    )
    other = replace(plan, verify="energy")
    assert repr(other) == repr(plan)
    assert tokenize(other) != tokenize(plan)
    assert tokenize(Run(other)) != tokenize(Run(plan))
    assert tokenize(Plan.from_json(plan.to_json())) == tokenize(plan)
