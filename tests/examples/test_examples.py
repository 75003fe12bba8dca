"""The examples and the README's code run, and wrong answers make them fail."""

import json
import re
import tomllib

import pytest
from forked_scripts import script
from support import DEFAULTS, ROOT, python

EXAMPLES = ROOT / "examples"
PICTURE = ["--picture", "picture.png"]
FOLDER = ["--folder", "field"]

#: Arguments that make an example quick, and what it then says.
SCRIPTS = [
    ("first_transform", ["--n", 2**22], ["single chunk", "part 2 of 2 of the FFT along axis 0"]),
    ("elevation", ["--chunk", 200], ["688 x 806, in 4 x 5 chunks"]),
    ("filtered_field", PICTURE, ["344 x 403 heights in 4 x 4 chunks: float32"]),
    ("large_field", ["--gib", 0.002, *FOLDER], [r"forward +[\d.]+ m?s +[\d.]+ .iB/s"]),
    # of this one the last slab is thinner
    (
        "larger_than_memory",
        ["--gib", 0.067, *FOLDER],
        ["left nothing that looks complete", "of scratch files"],
    ),
    ("transposed_order", ["--n", 2**22], [r"3 \+ 3 exchanges", r"2 \+ 2 exchanges"]),
    ("convolution", ["--n", 2**16, *PICTURE], ["in 16 chunks"]),
    ("spectra", ["--n", 256, *PICTURE], ["50.0 Hz is in the record"]),
    ("holes", ["--chunk", 200, *PICTURE], ["30% missing"]),
    ("filters", ["--n", 200, *PICTURE], [r"slope in \(m\)/\(m\)"]),
    ("spectrogram", ["--n", 20000, *PICTURE], ["317.25 Hz is in the record"]),
    (
        "demo",
        ["--gib", 0.002, "--n", 200, "--edge", 512, *FOLDER, *PICTURE],
        ["resumed +finished", "=> Dask's own FFT finished", "one plan .* s", "30% missing"],
    ),
    ("compare_1d", ["--n", 2**14, "--repetitions", 2, "--json", "out"], [r"(\| `.*\s+){3}"]),
    ("xarray_field", ["--n", 120, "--gib", 0.01], ["peak memory", "single chunk"]),
    ("array_backend", ["--mib", 16, "--repetitions", 2], [r"(?s)(\n\| [^\n]* \(.*){4}"]),
]


#: Examples that start interpreters of their own, or measure the memory of their own process.
IN_FRESH_PROCESSES = ("compare_1d", "demo", "large_field", "larger_than_memory", "xarray_field")


def variables_of(folder):
    """Return the variables of an example that runs in a folder."""
    return {"MPLBACKEND": "Agg", "MPLCONFIGDIR": folder, **DEFAULTS}


def run(*arguments, cwd, status=0):
    return python(
        "-W",
        "error::DeprecationWarning:__main__",
        *arguments,
        env=variables_of(cwd),
        cwd=cwd,
        status=status,
    )


def output_of(name, arguments, folder):
    """Return what an example prints in a folder."""
    path = EXAMPLES / f"{name}.py"
    if name in IN_FRESH_PROCESSES:
        return run(path, *arguments, cwd=folder).stdout
    return script(
        path,
        *arguments,
        cwd=folder,
        env=variables_of(folder),
        category=DeprecationWarning,
    )


def check_comparison(content, warm_runs):
    """Fail unless versions are named, first runs told apart, and peers run in both memory modes."""
    assert {"python", "numpy", "scipy", "dask"} <= content["machine"].keys()
    modes = {}
    for row in content["contestants"]:
        modes.setdefault(row["name"], set()).add(row["memory"])
        assert row["first"] > 0
        assert len(row["warm"]) == warm_runs
    peers = [name for name in modes if not name.startswith("dask_bigfft")]
    assert len(peers) >= 3
    assert all(modes[peer] == {"freed", "kept"} for peer in peers)


@pytest.mark.parametrize(("name", "arguments", "says"), SCRIPTS)
def test_examples(
    name,
    arguments,
    says,
    tmp_path,
):
    output = output_of(name, arguments, tmp_path)
    for text in says:
        assert re.search(text, output), output
    if "field" in arguments:  # nothing is left behind
        assert not list(tmp_path.glob("field/*"))
    if name == "compare_1d":
        check_comparison(json.loads((tmp_path / "out").read_text()), warm_runs=2)
    if "picture.png" in arguments:
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_every_example_is_run_here():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"demo_picture", "extras", "watched"}
    assert scripts == {name for name, _, _ in SCRIPTS}


@pytest.mark.parametrize(
    ("name", "package"),
    [("elevation", "matplotlib"), ("xarray_field", "xarray"), ("large_field", "zarr")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name, package, tmp_path):
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"sys.modules[{package!r}] = None\n"
        f"runpy.run_path({str(EXAMPLES / name)!r} + '.py', run_name='__main__')\n"
    )
    process = run("-c", code, cwd=tmp_path, status=1)
    (line,) = process.stderr.splitlines()
    extra = re.search(r"'dask-bigfft\[(\w+)\]'", line)[1]
    assert package in line
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = table["project"]["optional-dependencies"][extra]
    assert package in [re.match(r"[\w-]+", text)[0] for text in needed]


def test_readme_code_keeps_attributes_and_single_precision(tmp_path):
    xr = pytest.importorskip("xarray")
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    run("-c", "\n".join(code), cwd=tmp_path)
    before = xr.load_dataset(tmp_path / "field.nc")["height"]
    after = xr.load_dataset(tmp_path / "smooth.nc")["smooth"]
    assert before.attrs
    assert after.attrs == before.attrs
    assert after.dtype == before.dtype == "float32"
