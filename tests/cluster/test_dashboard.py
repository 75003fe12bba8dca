"""The page, the JSON route and the gauges show what runs, and give out names and numbers only."""

import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from cluster import browser
from cluster.test_register import token_of
from distributed import Event
from support import ROOT, local, python

import dask_bigfft
from dask_bigfft.cluster import dashboard, register, state, unregister
from dask_bigfft.testing.traps import until
from dask_bigfft.watch.report import COLOURS

ARTIFACTS = Path(os.environ.get("BIGFFT_ARTIFACTS", ROOT / "ci" / "out"))
FIELD = np.random.default_rng(11).standard_normal((64, 64))

pytest.importorskip("bokeh", reason="the page needs bokeh")


@pytest.fixture(scope="module")
def cluster():
    with local(threads=8, processes=True) as client:
        yield client.cluster


def base(client):
    return client.dashboard_link.rpartition("/")[0]


def got(url, **options):
    with urllib.request.urlopen(url, timeout=60, **options) as answer:
        return answer.read().decode()


def gated(name, seed):
    """A field whose lower half is not there before an event is set."""

    def pass_gate(block, block_info=None):
        if block_info[0]["chunk-location"][0] > 1:
            Event(name).wait(timeout=120)
        return block

    x = da.from_array(FIELD + seed, chunks=(16, 64))
    return x.map_blocks(pass_gate, dtype=float, meta=np.empty((0, 0)))


def names_and_numbers(value):
    """Every text in a JSON value; nothing but names and numbers may be there."""
    if isinstance(value, dict):
        return {str(key) for key in value} | names_and_numbers(list(value.values()))
    if isinstance(value, list):
        return set().union(*map(names_and_numbers, value))
    assert value is None or isinstance(value, str | int | float | bool), value
    return {value} if isinstance(value, str) else set()


def test_json_gives_names_and_numbers_only(client):
    secret = FIELD.copy()
    secret[0, 0] = 123456.78125
    y = dask_bigfft.fft.rfft2(da.from_array(secret, chunks=(16, 64)))
    y.compute()
    text = got(f"{base(client)}/bigfft/json")
    answer = json.loads(text)
    run = next(run for run in answer["runs"] if run["token"] == token_of(y))
    assert (run["name"], run["shape"], run["state"]) == ("rfft2", [64, 64], "done")
    assert {stage["key"] for stage in run["stages"]} == {"round1", "round2"}
    assert len(answer["workers"]) == 2
    assert all(worker["devices_in_use"] == 0 for worker in answer["workers"])
    assert "123456" not in text
    for word in names_and_numbers(answer):
        assert len(word) < 60, word
        assert os.sep not in word.replace("tcp://", ""), word
    with pytest.raises(urllib.error.HTTPError, match="405"):
        got(f"{base(client)}/bigfft/json", data=b"x")


def test_gauges_for_prometheus(client):
    pytest.importorskip("prometheus_client")
    y = dask_bigfft.fft.fft2(da.from_array(FIELD + 0.5, chunks=(16, 64)))
    y.compute()
    lines = got(f"{base(client)}/metrics").splitlines()
    (share,) = [
        line for line in lines if line.startswith("bigfft_run_share") and token_of(y) in line
    ]
    assert share.endswith(" 1.0")
    assert sum(line.startswith("bigfft_arena_allocated_bytes{") for line in lines) == 2


def test_after_unregistering_nothing_is_given_out_until_registered_again(client):
    unregister(client)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        got(f"{base(client)}/bigfft/json")
    assert 'href="bigfft"' not in got(f"{base(client)}/status")
    register(client)
    assert json.loads(got(f"{base(client)}/bigfft/json"))["runs"] == []
    for page in ("bigfft", "status", "graph"):
        assert got(f"{base(client)}/{page}").count('<a href="bigfft">') == 1


def listening():
    connections = psutil.Process().net_connections(kind="inet")
    return {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}


def in_this_process(**options):
    return local(workers=1, protocol="tcp", host="127.0.0.1", **options)


def test_nothing_new_listens_and_the_schedulers_prefix_is_kept():
    with in_this_process(scheduler_kwargs={"http_prefix": "/lab/dask"}) as client:
        before = listening()
        register(client)
        assert listening() == before
        assert {host for host, _ in before} == {"127.0.0.1"}
        port = client.cluster.scheduler.http_server.port
        root = f"http://127.0.0.1:{port}"
        assert json.loads(got(f"{root}/lab/dask/bigfft/json"))["runs"] == []
        assert "bokeh" in got(f"{root}/lab/dask/bigfft").lower()
        for path in ("bigfft", "bigfft/json"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                got(f"{root}/{path}")


def test_the_schedulers_tls_is_kept(tmp_path):
    key = tmp_path / "key.pem"
    certificate = tmp_path / "certificate.pem"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-keyout", key, "-out", certificate, "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    tls = "distributed.scheduler.dashboard.tls"
    settings = {f"{tls}.key": str(key), f"{tls}.cert": str(certificate)}
    with dask.config.set(settings), in_this_process() as client:
        register(client)
        place = f"127.0.0.1:{client.cluster.scheduler.http_server.port}/bigfft/json"
        trusted = ssl.create_default_context(cafile=str(certificate))
        assert json.loads(got(f"https://{place}", context=trusted))["runs"] == []
        with pytest.raises((urllib.error.URLError, OSError)):
            got(f"http://{place}")


def test_a_scheduler_without_a_dashboard_still_answers():
    code = (
        "from distributed import Client, LocalCluster\n"
        "from dask_bigfft import cluster, fft\nimport dask.array as da\n"
        "from dask_bigfft.cluster import state\n"
        "import sys\nsys.modules['bokeh'] = None\n"
        "one = LocalCluster(n_workers=1, processes=False, protocol='tcp', host='127.0.0.1', "
        "dashboard_address='127.0.0.1:0', scheduler_kwargs={'dashboard': False})\n"
        "client = Client(one)\ncluster.register(client)\n"
        "fft.fft(da.ones(64, chunks=16)).compute()\n"
        "print([run['state'] for run in state(client)['runs']])\n"
        "client.close(); one.close()\n"
    )
    assert python("-c", code).stdout.strip() == "['done']"


def phase_of(name, seconds, limit=None):
    """Return a phase of a run that took a MiB through some seconds."""
    return {
        "phase": name,
        "index": 1,
        "nbytes": 2**20,
        "seconds": seconds,
        "bytes_per_thread_second": 2**20 / seconds,
        "limit": limit,
    }


def widths_of(text, colour):
    """Return the lengths of the bars of a colour, in percent."""
    return re.findall(rf"width:([\d.]+)%;background:{colour}", text)


def test_a_fast_phase_has_a_short_bar_and_leaves_the_others_as_they_are():
    phases = [phase_of("pack", 4.0), phase_of("unpack", 2.0)]
    fast = phase_of("send", 0.004)  # a thousand times the speed
    for run in ({"phases": phases}, {"phases": [*phases, fast]}):
        text = dashboard.bars_html("Phases", dashboard.phases(run))
        assert widths_of(text, COLOURS["pack"]) == ["100.0"]
        assert widths_of(text, COLOURS["unpack"]) == ["50.0"]
    assert widths_of(text, COLOURS["send"]) == ["0.1"]
    assert "1.00 MiB in 4.00 ms: 250.00 MiB/s" in text


def test_the_mark_of_a_slow_profile_leaves_the_bars_as_they_are(client):
    y = dask_bigfft.fft.fft2(da.from_array(FIELD + 0.75, chunks=(16, 64)))
    y.compute()
    run = state(client)["runs"][-1]
    phases = [phase_of("pack", 4.0), phase_of("unpack", 2.0, limit=2**10)]
    text = dashboard.section_html({**run, "phases": phases}, {}, True)
    assert "mark: time by the profile" in text
    assert widths_of(text, COLOURS["unpack"]) == ["50.0"]
    assert "width:100.0%;border-right" in text


# --- in a browser ---------------------------------------------------------------------------


def bars(page):
    """Run, stage and share of all bars of stages."""
    return page.collect("""
      if (node.nodeName === "PROGRESS")
        found.push([node.closest("section").dataset.token,
                    node.closest("tr").cells[0].textContent, node.value / node.max]);
    """)


def menu_entry(page):
    """Return the name of this page in the menu."""
    return page.evaluate('document.querySelector("a[href=bigfft]").textContent')


def is_png(path):
    """Return True if a file is a picture."""
    return path.read_bytes().startswith(b"\x89PNG")


def test_the_page_in_a_browser_follows_two_transforms_and_tells_them_apart(client, tmp_path):
    program = browser.found()
    if program is None:
        pytest.skip("no browser: install chromium, or name one in BIGFFT_BROWSER")
    unregister(client)
    register(client)
    first, second = (dask_bigfft.fft.fft2(gated(f"gate-{i}", i)) for i in (1, 2))
    labels = [f"fft2 {token_of(y)[:6]}" for y in (first, second)]
    with browser.opened(program, tmp_path / "profile") as page:
        page("Page.navigate", url=f"{base(client)}/bigfft")
        page.wait(lambda text: "No transform has been seen yet" in text)
        futures = client.compute([first, second])
        page.wait(lambda text: text.count("running (round 1 of 2)") == 2)
        page.wait(lambda text: all(label in text for label in labels))
        half = [0.5, 0.5]
        page.wait(lambda text: [bar[2] for bar in bars(page) if bar[1] == "round 1 of 2"] == half)
        page.screenshot(ARTIFACTS / "dashboard-running.png")
        Event("gate-1", client=client).set()
        page.wait(lambda text: "done" in text and text.count("running (") == 1)
        ended = {(token_of(first), "round 2 of 2", 1.0), (token_of(second), "round 2 of 2", 0.0)}
        page.wait(lambda text: ended <= set(map(tuple, bars(page))))
        page.wait(lambda text: "1 transform running" in text)
        Event("gate-2", client=client).set()
        page.wait(lambda text: text.count("running (") == 0 and "Nothing is being" in text)
        page.wait(lambda text: {share for _, _, share in bars(page)} == {1.0})
        page.screenshot(ARTIFACTS / "dashboard.png")
        assert menu_entry(page) == "Bigfft"
        assert page.errors == []
    spectra = np.stack(client.gather(futures))
    assert np.allclose(spectra, [np.fft.fft2(FIELD + 1), np.fft.fft2(FIELD + 2)])
    assert is_png(ARTIFACTS / "dashboard-running.png")
    assert is_png(ARTIFACTS / "dashboard.png")


def test_the_page_has_all_runs_workers_and_versions_and_escapes_names(client):
    y = dask_bigfft.fft.fft2(da.from_array(FIELD + 0.25, chunks=(16, 64)))
    y.compute()
    until(lambda: state(client)["runs"][-1]["balance"])  # workers tell it by heartbeats
    answer = state(client)
    worker, other_worker = answer["workers"]
    run = {**answer["runs"][-1], "name": "<script>", "title": "<script> of", "rounds": "{X} & {Y}"}
    workers = [{**worker, "version": "0.0.1", "name": "w", "memory_limit": 0}, other_worker]
    text = "".join(dashboard.page_html({**answer, "runs": [run] * 9, "workers": workers}))
    assert text.count("&lt;script&gt; ") == 2 * text.count("<section") == 2 * 6
    assert ">barrier</text>" in text
    assert "by the profile" not in text  # nothing is calibrated
    assert "<script>" not in text
    assert "w (0.0.1)" in text
    assert "4 of 4 blocks" in text
    assert f"<td>{other_worker['name']}</td>" in text
    assert "No transform has been seen yet" in dashboard.page_html({**answer, "runs": []})[1]
