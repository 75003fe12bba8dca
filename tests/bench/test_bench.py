"""The program on tiny arrays: complete, checked, and not to be fooled."""

import contextlib
import io
import json
import math
import re
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dask_bigfft.bench.__main__ as program
from dask_bigfft.bench import children, measure, report
from dask_bigfft.bench.__main__ import main
from dask_bigfft.bench.peers import PEERS, Ours, assembled, contenders
from dask_bigfft.bench.problems import PROBLEMS
from dask_bigfft.bench.targets import ratio, roofline_seconds, targets
from dask_bigfft.kernels.libraries import available, usable

SCALE = 1e-4
FEW_BLOCKS = [name for name in PROBLEMS if name.endswith("-x16")]
QUICK = [name for name in PEERS if name != "fftw-measure"]


class WrongPeer(PEERS["ducc0" if "ducc0" in available() else "scipy"][0]):
    """A library whose answers have one wrong sign."""

    name = "wrong"
    factor = -1.0

    def run(self, data):
        result = super().run(data)
        result.reshape(-1)[3] *= self.factor
        return result


class WrongKernel(Ours):
    """One of our kernels that forgets a twiddle."""

    def run(self, data):
        result = super().run(data)
        return result.map_blocks(lambda block: block * np.exp(1e-9j)).persist()


class Broken(PEERS["scipy"][0]):
    """A library that fails."""

    name = "broken"

    def run(self, data):
        raise RuntimeError("no such transform")


@pytest.fixture
def in_this_process(monkeypatch):
    """Children are no processes of their own; `test_program` has such."""

    def call(task, threads, seconds):
        answer = io.StringIO()
        with contextlib.redirect_stdout(answer):
            children.serve(json.dumps({**task, "threads": threads, "seconds": min(seconds, 1e9)}))
        return json.loads(answer.getvalue().splitlines()[-1])

    monkeypatch.setattr(children, "call", call)


def entry_of(name, entrants, repeat=2):
    """What the program would record of a warm run."""
    problem = PROBLEMS[name].scaled(SCALE)
    extra = {"size": problem.size, "nbytes": problem.nbytes, "flops": problem.flops}
    warm = measure.warm(problem, entrants, repeat, 2)
    warm["plan"] = measure.planned(problem, 2)
    described = {"name": name, "family": problem.family, "ways": problem.ways, **extra}
    entry = {"problem": described, "warm": warm, "cold": []}
    entry["derived"] = report.derive(entry)
    return json.loads(json.dumps(entry))


@pytest.mark.parametrize("name", FEW_BLOCKS)
def test_every_problem_by_every_peer(name):
    entry = entry_of(name, contenders(2, QUICK, ["scipy"]), repeat=1)
    assert report.faults({"problems": [entry]}) == []
    found = entry["warm"]["contenders"]
    assert all(len(record["seconds"]) == 1 for record in found.values())
    assert all(len(record["checks"]) == 2 for record in found.values())
    assert found["scipy/persist"]["phases"][0].keys() & {"round1", "unpack1"}
    assert set(entry["derived"]["ratios"]) == found.keys() - {"scipy/persist", "scipy/compute"}


def test_every_kernel():
    entry = entry_of("2d-8192x8192-c128-x16", contenders(2, []))
    assert report.faults({"problems": [entry]}) == []
    kernels = {name.partition("/")[0] for name in entry["warm"]["contenders"]}
    assert kernels == set(usable())
    assert entry["derived"]["best_kernel"] in kernels
    assert entry["derived"]["ratios"] == {}


def test_wrong_answers_and_failures_are_reported_and_not_counted():
    entrants = [WrongPeer(2), Broken(2), PEERS["scipy"][0](2), Ours("scipy", "persist")]
    wrong = WrongKernel("scipy", "persist")
    wrong.name = "wrong/persist"
    entry = entry_of("3d-512x512x256-c128-x16", [*entrants, wrong])
    faults = report.faults({"problems": [entry]})
    assert [fault.split(": ")[1:3] for fault in faults] == [
        ["wrong", "wrong answer"],
        ["broken", "RuntimeError"],
        ["wrong/persist", "wrong answer"],
    ]
    assert entry["derived"]["best_kernel"] == "scipy"
    assert list(entry["derived"]["ratios"]) == ["scipy"]
    assert "nan" not in json.dumps(entry["derived"]).lower()


def test_what_is_not_a_number_is_wrong():
    peer = WrongPeer(2)
    peer.factor = np.nan
    entry = entry_of("2d-8192x8192-c128-x16", [peer, Ours("scipy", "persist")])
    assert "NaN" not in json.dumps(entry)
    assert "wrong answer: relative L2 1.0e+300" in report.faults({"problems": [entry]})[0]


def test_time_is_up_after_one_round():
    problem = PROBLEMS["1d-2p24-c128-x16"].scaled(SCALE)
    found = measure.warm(problem, contenders(1, ["scipy"], []), 5, 1, until=0.0)
    assert len(found["contenders"]["scipy"]["seconds"]) == 1
    assert found["contenders"]["scipy"]["ok"]


def test_program(tmp_path, capsys):
    out = tmp_path / "results" / "tiny.json"
    argv = ["--only", "3d-512x512x256-c128-x16", "--scale", "1e-4", "--cold", "1", "--repeat", "2",
            "--peers", "scipy", "da.fft", "--kernels", "scipy"]
    assert main([*argv, "--out", str(out)]) == 0, capsys.readouterr().err
    results = json.loads(out.read_text())
    assert results["complete"]
    assert results["schema"] == report.SCHEMA
    assert {"cpu", "cores", "caches", "memory_bytes", "versions"} <= results["machine"].keys()
    for entry in results["problems"]:
        assert entry["warm"]["contenders"].keys() == {
            "scipy", "da.fft", "scipy/persist", "scipy/compute"
        }
        assert [run["mode"] for run in entry["cold"]] == ["persist", "compute"]
        assert all(run["ok"] and run["peak_bytes"] > 0 for run in entry["cold"])
        assert all(run["touch_bytes_per_second"] > 0 for run in entry["cold"])
        assert entry["derived"]["roofline_seconds"] > 0
        assert len(entry["derived"]["targets"]) >= 5
    text = out.with_suffix(".md").read_text()
    assert "3d-512x512x256-c128-x16: da.fft over scipy/persist" in text
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_quick_runs_have_the_cold_runs_that_are_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(program, "_run", lambda args: seen.append(args) or {"problems": []})
    for argv in ([], ["--quick"], ["--quick", "--cold", "2"], ["--planning-seconds", "5"]):
        assert main([*argv, "--out", "nothing-there.json"]) == 0
    assert [args.cold for args in seen] == [3, 0, 2, 3]
    assert [args.planning_seconds for args in seen] == [60, 60, 60, 5]


@pytest.mark.skipif("pyfftw" not in available(), reason="needs pyfftw")
def test_the_planner_of_fftw_gets_its_time():
    found = {peer.name: peer for peer in contenders(2, ["scipy", "fftw-measure"], [], 5.0)}
    assert found["fftw-measure"].planning_seconds == 5.0
    assert contenders(2, ["fftw-measure"], [])[0].planning_seconds == 60.0


def test_the_roofline_takes_the_best_speeds():
    entry = {
        "warm": {
            "copy": {"bytes": 100, "seconds": [4.0, 1.0, 2.0]},
            "fft_flops_per_second": {"scipy": [1.0, 5.0, 2.0]},
            "plan": {"pass_bytes": [100, 200]},
        },
        "problem": {"flops": 10.0},
    }
    assert roofline_seconds(entry, "scipy") == 3.0 + 2.0


def test_pictures_in_results_that_are_kept_exist():
    folder = Path(__file__).parents[2] / "ci" / "results"
    reports = list(folder.glob("*.md"))
    assert reports
    for path in reports:
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (folder / name).is_file(), f"{path.name} shows {name}"


def test_a_run_of_some_problems_keeps_the_others(tmp_path, capsys, in_this_process):
    out = tmp_path / "tiny.json"
    argv = ["--scale", "1e-5", "--cold", "0", "--repeat", "1", "--peers", "--kernels", "scipy",
            "--out", str(out)]
    for name in ("2d-8192x8192-c128-x16", "1d-2p24-c64-x16"):
        assert main([*argv, "--merge", "--only", name]) == 0, capsys.readouterr().err
        if name.startswith("2d"):
            earlier = json.loads(out.read_text())
            earlier["problems"][0]["measured"]["started"] = "2001-02-03T04:05:06+00:00"
            out.write_text(json.dumps(earlier))
    results = json.loads(out.read_text())
    names = [entry["problem"]["name"] for entry in results["problems"]]
    assert names == ["1d-2p24-c64-x16", "2d-8192x8192-c128-x16"]  # in their usual order
    assert results["problems"][1]["measured"]["started"].startswith("2001-02-03")
    text = out.with_suffix(".md").read_text()
    assert "Kept from 2001-02-03 04:05, 1 rounds: 2d-8192x8192-c128-x16." in text
    assert main([*argv, "--merge", "--only", "2d-8192*x16", "--threads", "3"]) == 2
    assert "merge" in capsys.readouterr().err


def test_quick_runs_let_slow_peers_run_once(tmp_path, capsys, monkeypatch, in_this_process):
    slow = measure.SLOW
    monkeypatch.setattr(measure, "SLOW", 0.0)  # everybody but the first in turn is slow
    problem = PROBLEMS["2d-8192x8192-c128-x16"].scaled(SCALE)
    entrants = contenders(2, ["scipy"], ["scipy"])
    found = measure.warm(problem, entrants, 3, 2, slow_rounds=0, quick=True)["contenders"]
    peer, ours = found["scipy"], found["scipy/persist"]
    assert peer["seconds"] == [peer["first_seconds"]]
    assert len(ours["seconds"]) == 1  # slow, too, once it was measured
    assert all(record["ok"] and len(record["checks"]) == 1 for record in found.values())
    monkeypatch.setattr(measure, "SLOW", slow)
    out = tmp_path / "quick.json"
    argv = ["--quick", "--scale", "1e-5", "--peers", "scipy", "--kernels", "scipy", "--only",
            "1d-2p24-c64-x16", "--out", str(out)]
    assert main(argv) == 0, capsys.readouterr().err
    (entry,) = json.loads(out.read_text())["problems"]
    assert entry["cold"] == []
    assert entry["measured"]["repeat"] == 3
    assert 1 <= len(entry["warm"]["contenders"]["scipy/persist"]["seconds"]) <= 3


def test_slow_contenders_sit_out(monkeypatch):
    monkeypatch.setattr(measure, "SLOW", 0.0)  # all are
    problem = PROBLEMS["2d-8192x8192-c128-x16"].scaled(1e-5)
    found = measure.warm(problem, contenders(2, ["scipy"], ["scipy"]), 4, 2, slow_rounds=2)
    assert {len(record["seconds"]) for record in found["contenders"].values()} == {2}
    assert all(record["ok"] for record in found["contenders"].values())


def test_bad_arguments(tmp_path, capsys):
    assert main(["--only", "4d*", "--out", str(tmp_path / "x.json")]) == 2
    assert "4d*" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("1d-2p24-c128-x16")


def test_without_time_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "call", lambda *args: {})
    assert main(["--budget-seconds", "-1", "--out", str(tmp_path / "x.json")]) == 0
    assert not list(tmp_path.iterdir())


def test_a_child_that_fails_is_reported(tmp_path):
    task = {"task": "warm", "problem": "none", "scale": 1.0}
    assert "KeyError" in children.call(task, 1, math.inf)["error"]


def test_blocks_are_assembled_in_place():
    x = np.arange(35.0).reshape(5, 7)
    out = np.empty_like(x)
    assert assembled(da.from_array(x, chunks=(2, 3)).persist(), out) is out
    assert np.array_equal(out, x)


def test_ratio_and_targets():
    found = ratio([2.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    assert (found.median, found.least, found.most) == (3.0, 2.0, 3.0)
    assert 2.0 <= found.low <= found.high <= 3.0
    record = {"library": "x", "ok": True, "ours": True, "seconds": [1.0, 1.0]}
    peer = {**record, "ours": False}
    entry = {
        "problem": {"name": "1d-2p26-c128-x16", "family": "1D complex128"},
        "warm": {
            "copy": {"seconds": [0.1], "bytes": 1},
            "contenders": {
                "ducc0/persist": record,
                "ducc0/compute": {**record, "seconds": [1.1, 1.1]},
                "scipy/persist": {**record, "seconds": [1.2, 1.2]},
                "fftw-estimate": {**peer, "seconds": [1.6, 1.6]},
                "scipy": {**peer, "seconds": [2.0, 2.0]},
            },
        },
        "cold": [
            {"ok": True, "kernel": "ducc0", "mode": "persist", "seconds": 1.5, "peak_bytes": 22,
             "fresh_bytes": 30, "array_bytes": 10, "touch_bytes_per_second": 100.0},
        ],
    }
    assert {t.what.partition(": ")[2]: (round(t.found, 3), round(t.bound, 3), t.met)
            for t in targets(entry)} == {
        "fftw-estimate over ducc0/persist": (1.6, 1.5, True),
        "fftw-estimate over scipy/persist": (1.333, 1.2, True),
        "scipy over ducc0/persist": (2.0, 2.5, False),
        "compute(), s": (1.1, 1.15, True),
        "peak, arrays": (2.2, 2.2, True),
        "fresh pages (persist), arrays": (3.0, 2.0, False),
        "cold persist(), s": (1.5, 1.56, True),
    }
