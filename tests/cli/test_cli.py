"""The command line: right values from files, kind errors, and never a partial result."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask.array as da
import distributed
import numpy as np
import pytest
from runs.resuming import RNG, complex_values
from support import environment, local, python

from dask_bigfft.cli import Terminated, main
from dask_bigfft.cli.places import CLOSING, handled, place
from dask_bigfft.storage import targets
from dask_bigfft.testing.traps import until

zarr = pytest.importorskip("zarr")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def npy(name, values):
    np.save(name, values)
    return values


def check(name, wanted, tolerance=1e-12):
    array = zarr.open_array(name, mode="r")
    assert array.attrs[targets.ATTRIBUTE]["complete"] is True
    assert array.dtype == wanted.dtype
    assert array.shape == wanted.shape
    error = np.linalg.norm((array[...] - wanted).ravel()) / np.linalg.norm(wanted.ravel())
    assert error < tolerance
    return array


def only(folder, *names):
    """Nothing but these is in a folder: no part of a result, no old one."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def run(*words):
    """Run the command line's ``run``; arguments may be written in one text."""
    return main(["run", *" ".join(words).split(" ")])


SMALL = "--block-size 8KiB --quiet"


# --- values ---------------------------------------------------------------------------------


def test_an_npy_file_becomes_a_zarr_array(folder, capsys):
    values = npy("a.npy", complex_values(32, 16, 24))
    assert run("a.npy b.zarr --block-size 16KiB") == 0
    assert check("b.zarr", np.fft.fftn(values)).nchunks > 1
    output = capsys.readouterr()
    assert "fftn of (32, 16, 24) complex128" in output.out
    assert "100 %" in output.err
    only(folder, "a.npy", "b.zarr")


def test_axes_lengths_and_norm(folder):
    values = npy("a.npy", complex_values(8, 12, 10))
    assert run("a.npy b.zarr --axes -3,-1 --s 9,-1 --norm ortho", SMALL) == 0
    wanted = np.fft.fftn(
        values,
        s=(9, 10),
        axes=(0, 2),
        norm="ortho",
    )
    record = check("b.zarr", wanted).attrs[targets.ATTRIBUTE]
    assert (record["axes"], record["lengths"], record["norm"]) == ([0, 2], [9, 10], "ortho")
    assert record["kind"] == "fftn"
    assert run("a.npy c.zarr --kind fft --axes -2 --n 15") == 0
    check("c.zarr", np.fft.fft(values, n=15, axis=1))
    assert run("a.npy d.zarr --kind fft2") == 0
    check("d.zarr", np.fft.fft2(values))


def test_there_and_back_in_transposed_order(folder):
    values = npy("a.npy", complex_values(4096))
    assert run("a.npy b.zarr --kind fft --order transposed", SMALL) == 0
    assert zarr.open_array("b.zarr", mode="r").attrs[targets.ATTRIBUTE]["order"] == ["transposed"]
    assert run("b.zarr c.zarr --kind ifft --order transposed", SMALL) == 0
    record = check("c.zarr", values).attrs[targets.ATTRIBUTE]
    assert (record["order"], record["order_of"]) == (["transposed"], "input")


def test_plan_prints_the_explanation_and_writes_nothing(folder, capsys):
    npy("a.npy", complex_values(64, 64))
    assert main(["plan", "a.npy", "--block-size", "8 KiB", "--axes", "-2,-1"]) == 0
    assert "fftn of (64, 64) complex128" in capsys.readouterr().out
    only(folder, "a.npy")


# --- errors ---------------------------------------------------------------------------------

#: Sources and destinations that are refused, and how the error names them.
BAD = [
    ("nope.npy", "b.zarr", "`IN`='nope.npy'"),
    ("s3://bucket/a.zarr", "b.zarr", "`IN`="),
    ("folder", "b.zarr", "`IN`='folder'"),
    ("text.npy", "b.zarr", "`IN`='text.npy'"),
    ("cut.npy", "b.zarr", "`IN`='cut.npy'"),
    ("objects.npy", "b.zarr", "`IN`='objects.npy'"),
    ("texts.npy", "b.zarr", "`IN.dtype`"),
    ("long.npy", "b.zarr", "a dtype that Zarr can store"),
    ("a\0.npy", "b.zarr", r"`IN`='a\x00.npy'"),
    ("a.npy", "b\0.zarr", r"`OUT`='b\x00.zarr'"),
    ("a.npy", "nowhere/b.zarr", "`OUT`='nowhere/b.zarr'"),
    ("a.npy", "a.npy", "--overwrite"),
    ("a.npy", "folder --overwrite", "`OUT`="),
    ("a.npy", "a.npy --overwrite", "`OUT`="),
    ("g.zarr", "b.zarr", "`--component`=None"),
    ("g.zarr", "b.zarr --component z", "`--component`='z'"),
    ("a.npy", "b.zarr --kind rfftn", "`IN.dtype`"),
    ("a.npy", "b.zarr --axes 5", "axes"),
]

#: Options that are refused; the error names the last one.
BAD_OPTIONS = """--component x
--kind fftx; --kind dctn; --norm big; --order reversed; --memory-limit 1B
--memory-limit much; --chunks 3,3,3; --chunks 0; --scratch s\0; --variant best; --kernel none
--verify twice; --device tpu; --device-memory-limit much; --planner guess; --scratch a.npy
--scheduler magic; --n 4; --kind fft --s 4; --s 4,4,4; --resume; --kind fft --axes 9
--block-size 0; --kind fft --axes 0,1"""
BAD += [
    ("a.npy", f"b.zarr {options}", f"`--{options.rpartition('--')[2].split(' ')[0]}`")
    for options in BAD_OPTIONS.replace("\n", "; ").split("; ")
]


@pytest.fixture
def files(folder):
    npy("a.npy", complex_values(8, 8))
    npy("texts.npy", np.array(["a", "b"]))
    npy("long.npy", np.ones(8, "G"))
    np.save("objects.npy", np.array([None, 1], dtype=object), allow_pickle=True)
    Path("text.npy").write_text("hello")
    Path("cut.npy").write_bytes(Path("a.npy").read_bytes()[:300])
    Path("folder").mkdir()
    zarr.open_group("g.zarr", mode="w").create_array("x", shape=(4,), dtype="f8")
    zarr.open_group("g.zarr", mode="r+").create_array("deep/y", shape=(4,), dtype="f8")
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("source", "rest", "text"), BAD)
def test_what_is_not_allowed_is_said_in_a_line(
    folder,
    files,
    capsys,
    source,
    rest,
    text,
):
    assert run(source, rest, "--quiet") == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("dask-bigfft: error: ")
    assert output.err.count("\n") == 1
    assert text in output.err
    only(folder, *files)


@pytest.mark.parametrize(
    "words", ["--kind x", "--kernel x", "--chunks x", "--scheduler x", "--norm x", "--help"]
)
def test_help_and_errors_of_values_import_no_dask_array(folder, words):
    npy("a.npy", complex_values(4))
    code = f"import sys, dask_bigfft.cli as cli; sys.argv[1:] = 'plan a.npy {words}'.split()\n"
    code += "try: cli.main()\nexcept SystemExit: pass\nassert 'dask.array' not in sys.modules"
    assert ("--help" in words) != ("`=" in python("-c", code).stderr)


def test_resuming_is_offered_only_where_something_was_begun(folder, capsys, monkeypatch):
    npy("a.npy", complex_values(64, 64))
    assert run("a.npy b.zarr --scratch a.npy/x --quiet") == 1
    text = capsys.readouterr().err
    assert "`--scratch`='a.npy/x' cannot be a scratch folder: Not a directory" in text
    assert "nothing was written" in text
    assert "--resume" not in text
    only(folder, "a.npy")
    failing(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    assert run("a.npy b.zarr --scratch s", SMALL) == 1
    assert "s keeps what is done: --resume goes on from there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--s", ""),
        ("--workers", "0"),
        ("--workers", "two"),
        ("--n", "x"),
    ],
)
def test_what_is_not_a_number_is_refused_by_name(
    folder,
    capsys,
    option,
    value,
):
    with pytest.raises(SystemExit) as info:
        main(["run", "a.npy", "o.zarr", option, value])
    assert info.value.code == 2
    assert f"{option}: " in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", ["sync", "tcp://127.0.0.1:8786"])
def test_a_scheduler_with_workers_of_its_own_gets_no_others(folder, capsys, scheduler):
    npy("a.npy", np.ones(64))
    assert run(f"a.npy b.zarr --scheduler {scheduler} --workers 2", SMALL) != 0
    assert "`--workers`=2" in capsys.readouterr().err
    only(folder, "a.npy")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("--axis", "--axes"),
        ("--memory_limit", "--memory-limit"),
    ],
)
def test_an_unknown_option_names_the_nearest_one(
    folder,
    capsys,
    wrong,
    right,
):
    for words in (["run", "a.npy", "o.zarr", wrong, "0"], ["plan", "a.npy", f"{wrong}=0"]):
        with pytest.raises(SystemExit) as info:
            main(words)
        assert info.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert wrong in line
        assert right in line


# --- failure --------------------------------------------------------------------------------


def failing(monkeypatch, error, after=3):
    """Let writing fail at the fourth chunk."""
    calls = []
    real = targets.Target.write

    def write(target, index, values):
        calls.append(index)
        if len(calls) > after:
            raise error
        real(target, index, values)

    monkeypatch.setattr(targets.Target, "write", write)
    return calls


FAILURES = [
    (OSError(errno.ENOSPC, "No space left on device"), 1, "the disk is full"),
    (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
    (MemoryError("no"), 1, "out of memory"),
    (RuntimeError("broken\nin two"), 1, "RuntimeError: broken in two"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (Terminated(), 143, "ended by a signal"),
]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize(("error", "status", "text"), FAILURES)
def test_a_failure_leaves_nothing(
    folder,
    monkeypatch,
    capsys,
    scheduler,
    error,
    status,
    text,
):
    npy("a.npy", complex_values(4096))
    calls = failing(monkeypatch, error)
    assert run("a.npy b.zarr --kind fft --scheduler", scheduler, SMALL) == status
    assert len(calls) > 3
    output = capsys.readouterr()
    assert output.err.splitlines()[-1].startswith("dask-bigfft: error: ")
    assert text in output.err
    time.sleep(0.1)  # nothing goes on writing
    only(folder, "a.npy")


def test_what_a_killed_run_has_left_is_named(folder, capsys):
    npy("a.npy", complex_values(8))
    name = "from dask_bigfft.storage import targets; print(targets.name_of_run())"
    killed = python("-c", name).stdout.strip()
    left = Path(f"b.zarr.partial-{killed}")
    old = Path(f"b.zarr.replaced-{killed}")
    host, number, more = killed.rsplit("-", 2)
    goes_on = f"{host}-{os.getppid()}-{more}"
    elsewhere = f"other-{killed}"
    resumed = ["r0123456789ab", "r012345678901"]  # a killed one, or one that goes on
    for name in (killed, goes_on, elsewhere, *resumed, number, "012345678901"):
        Path(f"b.zarr.partial-{name}").mkdir()
    for name in (killed, goes_on, elsewhere, *resumed):
        Path(f"b.zarr.replaced-{name}").mkdir()
    assert run("a.npy b.zarr --quiet") == 0
    lines = capsys.readouterr().err.splitlines()
    olds = sorted(f"b.zarr.replaced-{name}" for name in (killed, elsewhere, *resumed))
    assert [line.split()[1] for line in lines] == [str(left), *olds]
    assert "it may be deleted" in lines[0]
    assert all("was b.zarr until a run replaced it that was killed" in line for line in lines[1:])
    assert old.is_dir()


# --- processes ------------------------------------------------------------------------------


def test_as_a_program(folder):
    values = npy("a.npy", complex_values(64, 48))
    process = python(
        "-m",
        "dask_bigfft",
        "run",
        "a.npy",
        "b.zarr",
    )
    check("b.zarr", np.fft.fftn(values))
    assert process.stdout.count("\n") == 1
    assert "\r" not in process.stderr


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -9),
    ],
)
def test_a_program_that_is_interrupted_leaves_no_result(folder, number, status):
    npy("a.npy", RNG.normal(size=(128, 128, 128)))
    old = zarr.create_array("b.zarr", data=complex_values(5, 5), chunks=(5, 5))[...]
    words = "-m dask_bigfft run a.npy b.zarr --overwrite --chunks 8,8,8"
    arguments = [sys.executable, *words.split()]
    with subprocess.Popen(arguments, env=environment(), stderr=subprocess.DEVNULL) as process:
        until(lambda: list(folder.glob("b.zarr.partial-*/c/*")))
        process.send_signal(number)
        assert process.wait(60) == status
    np.testing.assert_array_equal(zarr.open_array("b.zarr", mode="r")[...], old)
    left = [path for path in folder.iterdir() if path.name not in ("a.npy", "b.zarr")]
    if number != signal.SIGKILL:
        assert left == []
    for path in left:
        assert ".partial-" in path.name
        record = json.loads((path / "zarr.json").read_text())["attributes"][targets.ATTRIBUTE]
        assert record["complete"] is False


def test_on_a_cluster(folder, capsys):
    """One that is there, whose counts begin anew for each run, and one of its own."""
    values = npy("a.npy", complex_values(64, 64))
    with local(processes=True) as client:
        for name in ("b.zarr", "c.zarr"):
            assert (
                run("a.npy", name, "--block-size 16KiB --scheduler", client.scheduler.address) == 0
            )
    assert capsys.readouterr().err.count("done          100 %") == 2
    assert run("a.npy d.zarr --block-size 16KiB --scheduler processes --workers 1") == 0
    for name in ("b.zarr", "c.zarr", "d.zarr"):
        check(name, np.fft.fftn(values))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_signals_wait_while_a_cluster_is_closed(monkeypatch, fails, numbers):
    """A closing that was interrupted never ended. Nor may one that does not end by itself."""
    closed = []

    class Closing:
        def __init__(self, *_, **__):
            pass

        def close(self, timeout=None):
            if not closed:
                for number in numbers:
                    signal.raise_signal(number)
            closed.append(timeout)
            raise TimeoutError

    def end(number, frame):
        raise Terminated

    monkeypatch.setattr(distributed, "LocalCluster", Closing)
    monkeypatch.setattr(distributed, "Client", Closing)
    before = signal.getsignal(signal.SIGINT)
    expected = KeyboardInterrupt if signal.SIGINT in numbers else Terminated
    with handled(signal.SIGTERM, end):
        with pytest.raises(expected), place("processes", 1) as where:
            where.store(da.ones(2), np.zeros(2), None) if fails else None
        assert signal.getsignal(signal.SIGTERM) is end
    assert signal.getsignal(signal.SIGINT) is before
    assert closed == [CLOSING] * (4 if fails else 2)
