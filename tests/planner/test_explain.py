"""A plan in words and as a drawing: the numbers in them are the plan's, and they are quick."""

import itertools
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize
from dask.utils import format_bytes, format_time

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.planner import explain
from dask_bigfft.planner.drawing import draw
from dask_bigfft.planner.plan import Plan

TENSOR = re.compile(r"d\((\d+), (\d+), (\d+)\)")
LIMIT = {"memory_limit": "100 TiB"}


def plan(shape, cut, dtype="c16", kind="fftn", **options):
    return dask_bigfft.plan(da.zeros(shape, chunks=cut, dtype=dtype), kind, **LIMIT | options)


PLANS = {
    "two_rounds": (4096, 256, "c16", "fft", {"rounds": [32, 128]}),
    "slabs": ((64, 64, 64), (8, -1, -1), "c8", "fftn", {"rounds": [{1: 64, 2: 64}, {0: 64}]}),
    "prime": (1_000_003, 62_501, "c16", "fft", {}),
    "real": (2**16, 2**12, "f4", "rfft", {"rounds": [256, 256]}),
    "many": (2**28, 2**16, "c16", "fft", {}),
}


@pytest.fixture
def named_plan(request):
    """A plan by its name."""
    *problem, options = PLANS[request.param]
    return plan(*problem, **options)


def with_plans(*names):
    return pytest.mark.parametrize("named_plan", names or PLANS, indirect=True)


def lines_of(text, start):
    """Lines that begin with a word, each with those that carry it on."""
    joined = text.replace("\n" + " " * 12, " ")
    return [line.strip() for line in joined.splitlines() if line.startswith(f"  {start}")]


def tensors(plan, number):
    text = lines_of(plan.explain(details=True), f"round {number}")[0]
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


@with_plans("two_rounds")
def test_the_tensors_of_two_rounds_are_the_transform(named_plan):
    steps = [*tensors(named_plan, 1), *tensors(named_plan, 2)]
    assert steps == [(32, 128, 1), (128, 1, 32)]
    assert "d(32, 128, 1) t_4096" in named_plan.explain(details=True)
    values = np.random.default_rng(0).normal(size=4096) + 0j
    np.testing.assert_allclose(transform_by_tensors(values, steps), np.fft.fft(values), atol=1e-9)


@with_plans("slabs")
def test_slabs_have_one_exchange_with_the_papers_numbers(named_plan):
    text = named_plan.explain(details=True)
    assert tensors(named_plan, 1) == [(64, 64, 64), (64, 1, 1)]
    assert tensors(named_plan, 2) == [(64, 4096, 4096)]
    (local,) = lines_of(text, "local")
    (exchange,) = lines_of(text, "exchange")
    assert local.endswith("nothing travels")
    assert exchange == (
        "exchange  8 blocks (8, 64, 64) -> 8 blocks (64, 8, 64), 1 group, fan-in 8, C = 64, "
        "W = 512 (4.00 kiB), moves 2.00 MiB"
    )
    assert "result    8 chunks by axis {0: 64; 1: 8 x 8; 2: 64}" in text


def kinds_of_lines(named_plan):
    """The first words of the lines of a plan that are a stage's or the result's."""
    lines = [s for s in map(str.split, explain.summary(named_plan).splitlines()) if s]
    return [s[0] for s in lines if s[0] in ("local", "exchange", "round", "result")]


@with_plans()
def test_each_exchange_says_what_the_plan_has(named_plan):
    expected = []
    rounds = ["round"] * len(named_plan.rounds)
    for exchange, name in itertools.zip_longest(named_plan.exchanges, rounds):
        if exchange is not None:
            expected.append("local" if exchange.local else "exchange")
        if name is not None:
            expected.append(name)
    assert kinds_of_lines(named_plan) == [*expected, "result"]
    text = named_plan.explain(details=True)
    for exchange, line in zip(named_plan.travelling, lines_of(text, "exchange"), strict=True):
        shape = exchange.shape
        assert f"fan-in {shape.fan_in}, C = {shape.runs}, W = {shape.width} (" in line
        assert f"{shape.groups} group" in line
        assert line.endswith(f"moves {format_bytes(exchange.nbytes)}")
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(explain.summary(named_plan))


@with_plans()
def test_the_short_text_has_the_steps_the_memory_and_the_time_without_notation(named_plan):
    text = named_plan.explain()
    assert text == str(named_plan)
    assert max(map(len, text.splitlines())) <= 100
    assert not TENSOR.search(text)
    assert "C = " not in text
    assert "W = " not in text
    assert text.count("rechunk") == len(named_plan.travelling)
    assert text.count("FFT along") >= len(named_plan.rounds)
    forecast = named_plan.expected
    for part in (
        format_time(forecast.seconds),
        format_bytes(forecast.peak_host),
        explain.counted(forecast.tasks, "task"),
        explain.why(named_plan),
    ):
        assert part in " ".join(text.split())


def test_whole_axes_of_a_step_are_named_together():
    text = plan((64, 64, 64), (8, -1, -1), "c8", rounds=[{1: 64, 2: 64}, {0: 64}]).explain()
    assert "FFT along axes 1 and 2" in text
    assert "inverse" not in text
    back = plan((64, 64), (8, -1), "c8", "ifftn", rounds=[{1: 64}, {0: 64}]).explain()
    assert "inverse FFT along axis 0" in back


def test_the_reason_says_what_the_next_best_plan_would_have_cost():
    chosen = plan((64, 64, 64), (8, -1, -1), "c8")
    (_, other), *_ = chosen.rejected
    assert "the next best plan would take" in explain.why(chosen)
    twice = replace(other, seconds=2.0, bytes_exchanged=2 << 20, peak_host=3 << 20)
    once = replace(chosen.expected, seconds=1.0, bytes_exchanged=1 << 20, peak_host=3 << 20)
    reason = explain.why(chosen.changed(expected=once, rejected=(("", twice),)))
    assert reason.endswith(
        "the next best plan would take 2.00 s instead of 1.00 s and rechunk 2.00 MiB instead of "
        "1.00 MiB"
    )
    faster = explain.why(chosen.changed(expected=twice, rejected=(("", once),)))
    assert "next best" not in faster


def test_the_reason_of_the_only_plan_names_what_it_saves():
    assert "saves every rechunk" in explain.why(plan((64, 64), (64, 64), "c8", "fft2"))


@pytest.mark.parametrize("name", ["plan", "report"])
def test_completion_shows_public_names_alone(name):
    x = da.zeros((64, 64), chunks=(8, 64), dtype="c16")
    shown = dask_bigfft.plan(x, "fft2")
    if name == "report":
        spectrum = fft.fft2(x)
        spectrum.compute(scheduler="sync")
        shown = dask_bigfft.report(spectrum)
    assert {"explain", "timeline"} & {*dir(shown)}
    assert not [attribute for attribute in dir(shown) if attribute.startswith("_")]


def test_explain_has_reason_forecast_and_runners_up():
    explained = plan((64, 64, 64), (8, -1, -1), "c8")
    text = explained.explain(details=True)
    forecast = explained.expected
    assert f"why: {explain.why(explained)}" in " ".join(text.split())
    assert f"{forecast.tasks}\n" in text
    assert format_bytes(forecast.bytes_exchanged) in text
    assert format_time(forecast.seconds) in text
    assert f"{format_bytes(forecast.peak_host)} of 100.00 TiB" in text
    assert explained.rejected
    for (name, other), row in zip(
        explained.rejected, explain.rejected_rows(explained)[1:], strict=True
    ):
        assert row[0] == name
        assert row[3] == str(other.tasks)
        assert float(row[5]) == pytest.approx(other.seconds / forecast.seconds, abs=0.006)
        assert f"    {name} " in text


HUGE = [
    ((2**28,), 2**16, "fft"),
    ((16384, 16384, 16384), (256, 256, -1), "fftn"),
]


@pytest.mark.parametrize(("shape", "chunks", "kind"), HUGE)
def test_a_plan_of_4096_blocks_prints_in_a_second(shape, chunks, kind):
    large = plan(shape, chunks, "c8", kind)
    assert large.source.blocks == 4096
    started = time.process_time()  # some milliseconds, however busy the machine is
    text = large.explain(details=True)
    assert len(large.explain()) < 2000
    html = large._repr_html_()
    assert time.process_time() - started < 1
    assert len(text) < 8000
    assert len(html) < 60_000
    assert "4096 blocks" in text


class Checker(HTMLParser):
    """Counts elements, and refuses what is not closed or comes from outside."""

    VOID = ()

    def __init__(self):
        super().__init__()
        self.open = []
        self.count = {}
        self.texts = []

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


@with_plans()
def test_the_drawing_is_well_formed_and_has_every_exchange(named_plan):
    checker = checked(named_plan._repr_html_())
    assert named_plan._repr_html_() == draw(named_plan)
    for number, round_ in enumerate(explain.round_names(named_plan), 1):
        assert f"round {number} {{{round_}}}" in checker.texts
    for exchange in named_plan.travelling:
        assert f"C = {exchange.shape.runs}" in checker.texts
    assert checker.texts.count("exchange") == len(named_plan.travelling)
    assert checker.texts.count("local") == len(named_plan.exchanges) - len(named_plan.travelling)


@with_plans("two_rounds")
def test_text_in_the_drawing_is_escaped(named_plan):
    html = draw(replace(named_plan, reason="<script>alert(1)</script> & more"))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    checked(html)


def test_an_array_without_elements_has_a_plan_to_print():
    empty = plan((0, 8), 2, kind="fft")
    checked(draw(empty))
    for details in (False, True):
        assert max(map(len, empty.explain(details).splitlines())) <= 100


def test_a_prompt_shows_a_line_and_tokens_know_all() -> None:
    x = da.zeros(2**16, chunks=2**12, dtype="c16")
    plan = dask_bigfft.plan(x, "fft", rounds=[256, -1])
    assert repr(plan).startswith("<Plan {X1} {X2}: fft of (65536,) complex128, 3 exchanges, ")
    other = replace(plan, verify="energy")
    assert repr(other) == repr(plan)
    assert tokenize(other) != tokenize(plan)
    results = [fft.fft(x, rounds=[256, -1], verify=verify) for verify in ("none", "energy")]
    assert results[0].name != results[1].name
    assert tokenize(Plan.from_json(plan.to_json())) == tokenize(plan)
    with pytest.raises(ValueError, match="plan"):
        Plan.from_json("{}")
