"""Benchmark programs run to their ends at a tiny scale, with checked results; pages are current."""

import itertools
import json
import platform

import dask
import numpy as np
import pytest
from forked_benchmarks import run_in_forks
from support import python

from benchmarks import __main__ as benchmarks
from benchmarks import core, guard, pages, problems, rows
from dask_bigfft.testing.devices import simulated_devices

TINY = ("--scale", "0.00002", "--threads", "2")

#: Arguments of each program, and the rows that it writes.
PROGRAMS = {
    "memory": (
        "--only real-512x512x256-x16 --repeat 1 --processes 1 --kernels scipy "
        "--peers scipy --memory kept",
        2,
    ),
    "first_calls": (
        ["--only", "1 MiB, 3D, real", "1 MiB, 1D, complex", "--repeat", "1", "--kernels", "scipy"],
        2,
    ),
    "small": ("--only *(1000,)* help --repeat 1 --processes 1 --threads 1", 3),
    "convolution": (["--only", "taps: oaconvolve", "--repeat", "1", "--processes", "1"], 1),
    "verification": ("--only 3d --repeat 1 --kernels scipy", 1),
    "forecasts": (
        "--only slabs --repeat 1 --turns 1 --no-calibration --kernels scipy "
        "--parts errors tuner paper",
        5,
    ),
    "out_of_core": ("--only 3d --repeat 1 --kernels scipy", 1),
    "bands": ("--only 3d --repeat 1 --kernels scipy", 1),
    "operators": (
        ["--only", "slabs*", "--repeat", "1", "--processes", "1", "--kernels", "scipy"],
        1,
    ),
    "holes": (
        "--only filling* *memory --repeat 1 --processes 1 --kernels scipy",
        2,
    ),
    "slices": ("--repeat 1", 2),
    "limited": (["--only", "one axis, 64 MiB", "--repeat", "1"], 1),
    "clusters": (["--only", "first: 4096 blocks", "--repeat", "1"], 1),
    "guard": (f"--before {core.ROOT} --rows tall-8192*x16 --pairs 1 --repeat 1 --kernels scipy", 1),
}

#: Programs whose processes have to be fresh, have variables of their own, or print their answer.
#: Those of the others are forked from one that has imported everything.
IN_FRESH_PROCESSES = ("memory", "first_calls", "limited", "guard")


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_and_check_their_results(program, tmp_path):
    arguments, count = PROGRAMS[program]
    arguments = arguments.split() if isinstance(arguments, str) else arguments
    out = tmp_path / "results.json"
    arguments = [*TINY, *arguments, "--out", str(out)]
    if program in IN_FRESH_PROCESSES:
        python("-m", "benchmarks", program, *arguments, cwd=core.ROOT)
    else:
        run_in_forks(program, arguments)
    content = json.loads(out.read_text())
    written = [row for section in content["sections"].values() for row in section]
    assert len(written) == count
    assert all(row["ok"] for row in written if "tasks" not in row)  # on paper
    page = pages.page(content)
    assert all(row["name"] in page for row in written)


def test_every_program_is_run_by_a_test_or_needs_a_gpu():
    """A check that nothing runs would state what no longer holds."""
    by_gpu_session = {"gpu", "on_gpus"}
    assert set(benchmarks.PROGRAMS) == {*PROGRAMS, "pages", *by_gpu_session}


@pytest.mark.parametrize("what", ["rounds", "transforms", "ring", "unpinned"])
def test_rows_for_a_gpu_run_on_a_simulated_one(what, tmp_path):
    task = rows.Task(2**-14, 2, 1, "scipy", tmp_path)
    with simulated_devices(1 << 20), dask.config.set(scheduler="sync"):
        figures, check = rows.on_gpu(what, task)
    assert check["ok"]
    expected_figures = 5 if what in ("rounds", "ring") else 3
    assert len(figures) == expected_figures


@pytest.mark.parametrize("blocks", [1, 16, 1024, 4096])
def test_a_row_for_each_number_of_blocks_times_plan_and_graph(blocks, tmp_path):
    task = rows.Task(2**-10, 2, 1, "scipy", tmp_path)
    with dask.config.set({"bigfft.planner.min-chunk": 0}):
        figures, check = rows.ROWS[f"planning-{blocks}"].run(task)
    assert check["ok"]
    assert check["tasks"] > blocks
    assert figures.keys() == {"plan", "graph"}
    for seconds_of_turns in figures.values():
        assert len(seconds_of_turns) == rows.PLANNING_TURNS
        assert min(seconds_of_turns) > 0


@pytest.mark.parametrize(("faster", "verdict"), [(1.0, "ok"), (0.5, "slower")])
def test_turns_of_a_pair_are_compared_with_each_other(faster, verdict):
    """The noise of a machine, which both turns meet, is in no ratio."""
    noise = [1.0, 3.0, 2.0]
    before = [[faster * seconds for seconds in noise] for _ in range(5)]
    after = [noise] * 5
    result = guard.compared(before, after, bound=1.05)
    assert result["ratio"] == pytest.approx(1 / faster)
    assert result["verdict"] == verdict


def test_a_graph_without_a_block_of_the_result_is_wrong(tmp_path, monkeypatch):
    def tasks_of_others(array):
        tasks = all_tasks(array)
        last_block = (array.name, *(n - 1 for n in array.numblocks))
        return {key: task for key, task in tasks.items() if key != last_block}

    all_tasks = rows.tasks_of
    monkeypatch.setattr(rows, "tasks_of", tasks_of_others)
    _, check = rows.planning(16, rows.Task(2**-10, 2, 1, "scipy", tmp_path))
    assert not check["ok"]


def test_checks_find_a_wrong_value():
    problem = problems.Problem("fftn", (64, 8), "c16", 4)
    x = problems.fill(np.empty(problem.shape, problem.dtype))
    truth = problems.Truth.of(problem, x)
    right = np.fft.fftn(x)
    assert truth.check(right)["ok"]
    wrong_results = {
        "order": right[::-1],
        "values": right * (1 + 1e-9),
        "shape": right[:, :4],
        "NaN": np.full_like(right, np.nan),
    }
    for name, wrong in wrong_results.items():
        assert not truth.check(np.ascontiguousarray(wrong))["ok"], name


def run(*arguments, out, **variables):
    """Return the rows of a benchmark program by section and name."""
    python("-m", "benchmarks", *arguments, "--out", out, cwd=core.ROOT, env=variables)
    sections = json.loads(out.read_text())["sections"]
    by_name = {}
    for section, rows_of_section in sections.items():
        by_name[section] = {row["name"]: row for row in rows_of_section}
    return by_name


only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")

#: Prints the page faults of allocations in a thread, after a first one of the same size.
ALLOCATE = """
import resource
from concurrent.futures import ThreadPoolExecutor
import numpy as np

def faults(_):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(16 << 20)  # 128 MiB: more than an arena of a thread holds
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with ThreadPoolExecutor(1) as pool:
    print(list(pool.map(faults, range(3)))[-1])
"""


@only_glibc
def test_processes_give_freed_memory_back_or_keep_it(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1024")  # a user's own setting is not inherited
    faults = {}
    for mode in ("freed", "kept"):
        faults[mode] = core.child(["-c", ALLOCATE], core.environment(mode))
    assert faults["freed"] > 4 * (faults["kept"] + 1)


@only_glibc
@pytest.mark.slow
def test_peers_run_with_memory_freed_and_kept(tmp_path):
    problem = "1d-2p26-x16"
    options = f"--only {problem} --scale 0.125 --repeat 1 --processes 1 --kernels scipy"
    peers = ["scipy", "da.fft"]
    sections = run("memory", *options.split(), "--peers", *peers, out=tmp_path / "out.json")
    rows = sections[problem]
    for peer in peers:
        faults = {mode: rows[f"{peer}, memory {mode}"]["faults"] for mode in ("freed", "kept")}
        assert faults["freed"] > 4 * faults["kept"]
    for row in rows.values():
        assert row["ok"]
        assert row["first"] > 0
        assert row["warm"] > 0


def test_thread_variables_of_users_reach_no_program():
    variables = {"OPENBLAS_NUM_THREADS": 1, "OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1}
    arguments = ["-m", "benchmarks", "--call", "core", "environment", "[]"]
    answer = python(*arguments, cwd=core.ROOT, env=variables)
    assert not variables.keys() & json.loads(answer.stdout).keys()


@pytest.mark.parametrize("program", ["memory", "convolution", "small"])
def test_results_say_of_peers_what_they_did_with_memory(program):
    content = json.loads((pages.RESULTS / f"{program}.json").read_text())
    assert {"numpy", "scipy", "dask"} <= content["machine"]["versions"].keys()
    ours = ("ours", "full: fftconvolve", "taps: fftconvolve", "taps: oaconvolve")
    sections = content["sections"]
    sections.pop("start", None)
    for row in itertools.chain.from_iterable(sections.values()):
        names = row["warm"] if program == "small" else [row["name"]]
        for name in names:
            is_peer = name.endswith(("memory kept", "memory freed"))
            assert is_peer or name.startswith(ours)


def test_facts_that_were_not_measured_are_left_out(tmp_path, monkeypatch):
    for path in pages.RESULTS.glob("*.json"):
        content = json.loads(path.read_text())
        if path.stem == "convolution":
            row = {"name": "full: scipy, memory kept", "first": 2.0, "warm": 1.25, "n": 1}
            content["sections"]["runs"] = [row]
        (tmp_path / path.name).write_text(json.dumps(content))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    facts = [line for line in pages.figures() if "`convolution`" in line]
    assert len(facts) == 1
    assert "1.2" in facts[0]


def test_pages_and_figures_are_those_of_the_json():
    assert pages.main(["--check"]) == 0
    nbytes = sum(path.stat().st_size for path in pages.RESULTS.iterdir())
    assert nbytes <= 500 << 10
