"""What a borrowed card is to measure: every command is one that its program takes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dask_bigfft.bench import gpu, gpu_hybrid
from dask_bigfft.cli import arguments as cli

ROOT = Path(gpu.__file__).resolve().parents[2]
SESSION = ROOT / "ci" / "gpu-session"

#: Seconds that a part may take on such a machine.
MOST = 600


def steps():
    found = subprocess.run([SESSION, "--list"], capture_output=True, text=True, check=True).stdout
    rows = [line.split("|") for line in found.splitlines()]
    return [(part, int(seconds), shlex.split(command)) for part, seconds, command in rows]


def test_every_part_ends_in_time():
    found = steps()
    for part in {part for part, _, _ in found}:
        assert sum(seconds for name, seconds, _ in found if name == part) <= MOST
    for _, seconds, words in found:
        if "--budget-seconds" in words:  # and has time to end the case that it is at
            assert float(words[words.index("--budget-seconds") + 1]) <= seconds - 30


@pytest.mark.parametrize("step", steps(), ids=lambda step: " ".join(step[2][:2]))
def test_every_command_is_one_that_its_program_takes(monkeypatch, capsys, step):
    for program in (gpu, gpu_hybrid):
        monkeypatch.setattr(program, "reason", lambda: "no card here")
    words = step[2]
    assert (ROOT / words[0]).stat().st_mode & 0o100
    if words[0] == "ci/bench":
        program = {"--gpu": gpu, "--gpu-hybrid": gpu_hybrid}[words[1]]
        assert program.main(words[2:]) == 1  # 2, and an exit, for words that it does not take
        assert capsys.readouterr().err == "bench: no card here\n"
    elif words[0] == "ci/gpu-python":
        assert words[1:3] == ["-m", "dask_bigfft"]
        arguments = cli.parser().parse_args(words[3:])
        assert str(arguments.output) == words[-1]
    else:
        assert words[0] == "ci/gpu"
        if "-k" in words:
            assert list((ROOT / "tests" / "gpu").glob(f"*{words[words.index('-k') + 1]}*"))


def test_what_fails_does_not_keep_the_rest_from_running(tmp_path):
    """Here nothing can be measured: all that is asked for is tried, and said to have failed."""
    if gpu.reason() is None:
        pytest.skip("there is a card")
    environment = {**os.environ, "OUT": str(tmp_path / "out"), "BIGFFT_PYTHON": sys.executable}
    done = subprocess.run(
        [SESSION, "hybrid"], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1
    told = (tmp_path / "out" / "session.log").read_text(encoding="utf-8")
    assert told.count("== hybrid: ") == told.count("== status 1 ") == 2
    assert told.count("ci/gpu-python: ") == 2
    wrong = subprocess.run([SESSION, "foo"], capture_output=True, text=True, env=environment)
    assert wrong.returncode == 2
    assert "no part 'foo': tests rounds rest hybrid two" in wrong.stderr
