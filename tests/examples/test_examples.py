"""The examples and the README's code run, and wrong answers make them fail."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(*arguments, cwd):
    environment = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(cwd),
                   "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )


def said(*arguments, cwd):
    """What a script that succeeds prints."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_first_transform(tmp_path):
    text = said(EXAMPLES / "first_transform.py", "--n", 2**14, cwd=tmp_path)
    assert "single chunk" in text
    assert "rounds {X1} {X2}" in text
    assert "forecast" in text


def test_elevation(tmp_path):
    text = said(EXAMPLES / "elevation.py", "--chunk", 200, cwd=tmp_path)
    assert "688 x 806, in 4 x 5 chunks" in text


def test_large_field_and_leaves_nothing_behind(tmp_path):
    text = said(
        EXAMPLES / "large_field.py", "--gib", 0.002, "--folder", tmp_path / "field", cwd=tmp_path
    )
    assert re.search(r"forward +[\d.]+ s +[\d.]+ GB/s", text)
    assert list((tmp_path / "field").iterdir()) == []


@pytest.mark.parametrize("gib", [0.004, 0.067])  # of the larger one the last slab is thinner
def test_larger_than_memory_survives_being_killed(gib, tmp_path):
    text = said(
        EXAMPLES / "larger_than_memory.py", "--gib", gib, "--folder", tmp_path / "f",
        cwd=tmp_path,
    )
    assert "nothing looks complete: True" in text
    assert "by way of disk" in text
    assert not (tmp_path / "f").exists()


def test_transposed_order_saves_an_exchange_each_way(tmp_path):
    text = said(EXAMPLES / "transposed_order.py", "--n", 2**18, cwd=tmp_path)
    assert "3 + 3 exchanges" in text
    assert "2 + 2 exchanges" in text


def test_convolution(tmp_path):
    text = said(
        EXAMPLES / "convolution.py", "--n", 2**16, "--picture", tmp_path / "picture.png",
        cwd=tmp_path,
    )
    assert "in 16 chunks" in text
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_spectra(tmp_path):
    text = said(
        EXAMPLES / "spectra.py", "--n", 256, "--picture", tmp_path / "picture.png", cwd=tmp_path
    )
    assert "50.0 Hz is in the record" in text
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_demo_draws_its_picture(tmp_path):
    picture = tmp_path / "picture.png"
    text = said(
        EXAMPLES / "demo.py", "--gib", 0.002, "--n", 2**18, "--folder", tmp_path / "field",
        "--picture", picture, cwd=tmp_path,
    )
    assert "how far from SciPy" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_1d(tmp_path):
    text = said(
        EXAMPLES / "compare_1d.py", "--n", 2**14, "--repetitions", 2, "--json", tmp_path / "out",
        cwd=tmp_path,
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) >= 3
    assert (tmp_path / "out").exists()


def test_xarray_field(tmp_path):
    pytest.importorskip("xarray")
    text = said(EXAMPLES / "xarray_field.py", "--n", 120, cwd=tmp_path)
    assert "freq_x is in 1/km" in text
    assert "single chunk" in text


def test_array_backend(tmp_path):
    text = said(
        EXAMPLES / "array_backend.py", "--mib", 16, "--repetitions", 2, cwd=tmp_path
    )
    assert len(re.findall(r"^\| .* \(", text, re.MULTILINE)) == 4


@pytest.mark.parametrize(
    ("script", "package", "arguments"),
    [
        ("elevation", "matplotlib", []),
        ("demo", "matplotlib", []),
        ("convolution", "matplotlib", ["--n", "65536", "--picture", "p.png"]),
        ("spectra", "matplotlib", ["--n", "64", "--picture", "p.png"]),
        ("xarray_field", "xarray", []),
        ("large_field", "zarr", []),
        ("larger_than_memory", "zarr", []),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    script, package, arguments, tmp_path
):
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(EXAMPLES)!r}); sys.argv[1:] = {arguments!r}\n"
        f"sys.modules[{package!r}] = None\n"
        f"runpy.run_path({str(EXAMPLES / script)!r} + '.py', run_name='__main__')\n"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    extra = re.search(r"'dask-bigfft\[(\w+)\]'", line)[1]
    assert package in line
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = table["project"]["optional-dependencies"][extra]
    assert package in [re.match(r"[\w-]+", text)[0] for text in needed]


@pytest.mark.parametrize(
    ("script", "function", "arguments"),
    [
        ("elevation", "rfft2", []),
        ("large_field", "irfft2", ["--gib", "0.002", "--folder", "field"]),
        ("transposed_order", "irfft", ["--n", "65536"]),
        ("first_transform", "fft", ["--n", "16384"]),
    ],
)
def test_a_wrong_answer_is_an_error(script, function, arguments, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); sys.argv[1:] = {arguments!r}\n"
        f"import {script}\nfrom dask_bigfft import fft\nright = fft.{function}\n"
        f"fft.{function} = lambda *a, **k: right(*a, **k) * (1 + 1e-12)\n{script}.main()\n"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "wrong" in done.stderr


def blocks(language):
    """Code blocks of the README."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_readme_code_runs(tmp_path):
    code = blocks("python")
    assert code
    said("-c", "\n".join(code), cwd=tmp_path)
