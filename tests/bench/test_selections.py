"""What selects nothing is said in a line, with status 2, before anything is measured."""

import pytest

from dask_bigfft.bench import clusters, model, outofcore, tuning
from dask_bigfft.devices import find

WRONG = [
    (outofcore, ["--only", "foo"], "'foo'"),
    (model, ["--problems", "nothing"], "--problems nothing: need part of one of: "),
    (model, ["--kernels", "scipy,foo"], "--kernels foo: need some of "),
    (tuning, ["--problems", "nothing"], "--problems nothing: need part of one of: "),
    (tuning, ["--device", "gpu"], "--device gpu: need a GPU: no card"),
    (clusters, ["--mib", "0"], "--mib 0: need a number of at least 1"),
    (clusters, ["--repeat", "-1"], "--repeat -1: need a number of at least 1"),
]


@pytest.mark.parametrize(("program", "arguments", "text"), WRONG)
def test_what_selects_nothing_is_refused(monkeypatch, capsys, program, arguments, text):
    monkeypatch.setattr(find, "missing", lambda: "no card")
    monkeypatch.setattr(model, "measure", None)
    with pytest.raises(SystemExit) as info:
        program.main(arguments)
    assert info.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert text in output.err.splitlines()[-1]
