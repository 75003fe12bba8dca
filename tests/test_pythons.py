"""The interpreters that scripts in `ci` find, among those that refuse to run or are another."""

import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[1] / "ci"
TOOLS = ["bash", "dirname", "grep", "ls", "sed", "sort", "timeout"]


@pytest.fixture
def machine(tmp_path):
    """A machine that has these tools alone, and an empty pyenv."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool))
    answers = 'versions) ls "$HOME";; prefix) echo "$HOME/$2";;'
    program(tmp_path / "pyenv", f'case "$1" in {answers} esac')
    (tmp_path / "home").mkdir()
    return tmp_path


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(name, machine, *args):
    places = {"PATH": machine, "HOME": machine / "home", "BIGFFT_VENV": machine / "venv"}
    env = {key: str(path) for key, path in places.items()}
    command = [str(machine / "bash"), str(CI / name), *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_interpreters_are_those_that_run_as_a_supported_version(machine):
    program(machine / "python3.11", 'echo "pyenv: python3.11: command not found" >&2; exit 127')
    program(machine / "python3.12", 'echo "3.13 $0"')
    program(machine / "python3", 'echo "3.14 $0"')
    program(machine / "python", 'echo "3.12 $0"')
    for full in ("3.10.13", "3.11.7", "3.12.1", "3.14.0"):
        program(machine / "home" / full / "bin" / "python", f'echo "{full.rpartition(".")[0]} $0"')
    done = run("pythons", machine)
    of_pyenv = machine / "home" / "3.11.7" / "bin" / "python"
    assert done.stdout.splitlines() == [f"3.11 {of_pyenv}", f"3.12 {machine / 'python'}"]
    assert run("pythons", machine, machine / "python3").stdout == ""
    assert run("pythons", machine, machine / "python").stdout == f"3.12 {machine / 'python'}\n"


@pytest.mark.parametrize("name", ["versions", "setup"])
def test_without_interpreters_nothing_passes(machine, name):
    done = run(name, machine)
    assert done.returncode == 1
    assert "Python" in done.stderr
