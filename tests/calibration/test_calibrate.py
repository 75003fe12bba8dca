"""Calibration at tiny sizes: what is measured, where it is kept, and what plans make of it."""

import json
import logging
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import pytest
from support import in_threads

import dask_bigfft
from dask_bigfft import calibration, files
from dask_bigfft.calibration import cluster, threads
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.machine import environment
from dask_bigfft.planner.profile import DEFAULT, LibrarySpeeds, Profile
from dask_bigfft.testing.devices import simulated_devices


@pytest.fixture
def folder(tmp_path, monkeypatch):
    environment._profile.cache_clear()
    monkeypatch.setattr("dask_bigfft.calibration.usable", lambda: {"scipy": "1"})
    monkeypatch.setattr("dask_bigfft.calibration.store_loops", lambda: None)  # see test_loops.py
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield tmp_path


def machine():
    x = da.zeros((64, 64), chunks=16, dtype=complex)
    return dask_bigfft.plan(x, "fft2").machine


def test_known_prices_are_found_again():
    """Runs that take exactly what a profile says give back its prices."""
    out = get_library("scipy").supports_out
    speeds = ("complex128", 3e9, 1e9, out), ("complex64", 5e9, 2e9, out)
    libraries = tuple(LibrarySpeeds("scipy", *row) for row in speeds)
    prices = {
        "run": 2e-8,
        "move": 3e-10,
        "start": 2e-3,
        "task": 2e-4,
        "tile": 5e-5,
    }
    prices |= {"shard": 3e-5, "exchange": 2e-3, "pair": 0.0}
    known = Profile(
        "known",
        2,
        copy=4e9,
        libraries=libraries,
        **prices,
    )
    runs = []
    for dtype in threads.DTYPES:
        for problem in threads.problems(1 << 21, 2, few=False):
            options = {"axes": problem.axes, "kernel": "scipy", "device": "cpu"}
            plan = dask_bigfft.plan(problem.array(dtype), problem.kind, **options)
            seconds = plan.forecast(known, threads=2).seconds
            runs.append(threads.Trial(plan, measured=(seconds,)))
    fitted = threads.fitted(runs, 2, {(library.name, library.dtype): 2e9 for library in libraries})
    refitted = Profile("found", 2, pair=0.0, **fitted)
    for run in runs:  # prices that are told apart badly may differ, what they say together not
        again = run.plan.forecast(refitted, threads=2).seconds
        assert again == pytest.approx(run.seconds, rel=0.12)
    assert fitted["task"] == pytest.approx(known.task, rel=0.3)
    assert fitted["libraries"][0].flops == pytest.approx(3e9, rel=0.3)


def test_the_disk(tmp_path):
    on_all = partial(cluster.on_workers, None)
    speeds = cluster.disk_speeds(
        on_all,
        {"": [""]},
        str(tmp_path / "new"),
        1 << 20,
    )
    assert min(speeds["write"], speeds["read"]) > 1e5
    assert not list((tmp_path / "new").iterdir())


def test_plans_use_what_was_measured(folder):
    assert machine().profile == DEFAULT
    with simulated_devices(1 << 22, count=2):
        profile = dask_bigfft.calibrate(nbytes=1 << 14, repeat=1)
    assert [device.nbytes for device in profile.devices] == [1 << 22] * 2
    assert profile.devices[0].h2d == pytest.approx(5e10, rel=0.9)
    assert machine().profile == profile
    assert {library.dtype for library in profile.libraries} == {"complex128", "complex64"}
    assert all(1e5 < library.flops < 1e13 for library in profile.libraries)
    assert "profile.json" in {path.name for path in folder.iterdir()}
    again = dask_bigfft.Plan.from_json(dask_bigfft.plan(da.zeros(64, chunks=8), "fft").to_json())
    assert again.machine.profile == profile


def test_two_calibrations_at_once_leave_the_settings_alone():
    prices = in_threads(2, lambda _: threads.thread_prices(1, 1 << 10, 1, ["scipy"]))
    assert all(0 < by_name["task"] < 1 for by_name in prices)


def write(path, **entries):
    environment.save_profile(Profile(task=1.25), path)
    content = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(content))


def test_a_profile_named_by_the_settings_holds_anywhere(folder, tmp_path):
    write(tmp_path / "other.json", machine=["another", "machine", 1024])
    with dask.config.set({"bigfft.planner.profile": str(tmp_path / "other.json")}):
        assert machine().profile.task == 1.25
    assert machine().profile == DEFAULT


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"schema": 8, "profile"', "damaged"),
        ("[]", "damaged"),
        (None, "another machine"),
        ('{"schema": 8, "machine": 0}', "another machine"),
        ('{"schema": 99}', ""),
    ],
)
def test_what_is_damaged_or_foreign_is_reported_and_ignored(
    folder,
    caplog,
    content,
    text,
):
    path = Path(environment.profile_path())
    if content is None:
        write(path, machine=["another", "machine", 1024])
    else:
        path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert machine().profile == DEFAULT
        assert machine().profile == DEFAULT
    assert len(caplog.records) == bool(text)  # once for each file
    assert text in caplog.text
    write(path, machine=files.machine())  # a better file is read when it comes
    assert machine().profile.task == 1.25


@pytest.mark.parametrize("content", [None, "{", '{"schema": 3, "machine": 0}'])
def test_a_named_file_that_cannot_be_used_is_reported_once(
    folder,
    caplog,
    tmp_path,
    content,
):
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    with dask.config.set({"bigfft.planner.profile": str(path)}):
        assert machine().profile == machine().profile == DEFAULT
    assert caplog.text.count("old.json cannot be used") == (content is not None)
    assert ("does not exist" in caplog.text) == (content is None)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    folder,
    tmp_path,
    monkeypatch,
    capsys,
):
    """Like the place of a result: a folder that is not there may be a slip of the pen."""
    monkeypatch.setattr(calibration, "measure", None)
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    for path in ("file/p.json", "none/p.json", tmp_path / "none" / "p.json", tmp_path, "a\0b"):
        with pytest.raises(ArgumentError, match="`path`="):
            dask_bigfft.calibrate(path=path)
    with pytest.raises(ArgumentTypeError, match=r"`path`=3 .* need the path of a file"):
        dask_bigfft.calibrate(path=3)
    assert main(["calibrate", "--output", "none/p.json"]) == 2
    assert "`--output`='none/p.json'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*") if path != folder) == ["file"]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("nbytes", 0, ArgumentError),
        ("nbytes", "1 MiB", ArgumentTypeError),
        ("repeat", True, ArgumentTypeError),
        ("client", "tcp://127.0.0.1:1", ArgumentTypeError),
    ],
)
def test_numbers_are_refused_by_name_before_anything_is_measured(
    monkeypatch,
    name,
    value,
    kind,
):
    monkeypatch.setattr(calibration, "measure", None)
    with pytest.raises(kind, match=f"`{name}`={value!r} is not allowed"):
        dask_bigfft.calibrate(**{name: value})


def test_command_line(folder, capsys, monkeypatch):
    requested = []

    def quick(client, path):
        requested.append((client, path))
        return DEFAULT

    monkeypatch.setattr("dask_bigfft.calibration.calibrate", quick)
    assert main(["calibrate", "--output", str(folder / "p.json")]) == 0
    assert requested == [(None, folder / "p.json")]
    assert "copy" in capsys.readouterr().out
