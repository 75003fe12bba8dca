"""Public names, attributes, settings, metrics, JSON keys and options of the command line."""

import contextlib
import importlib
import inspect
import io
import json
import re
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.distributed import Client

import dask_bigfft
from dask_bigfft import cli, config, errors, events
from dask_bigfft.cluster import observe
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.traps import until

from . import begun_run
from .environments import cluster_of, empty_folder, fixed_settings

Surface = dict[str, Any]

#: Root of the tree whose package is imported.
ROOT = Path(dask_bigfft.__file__).resolve().parents[1]

#: Events that depend on what this process, or one before it, has compiled or used.
BY_CHANCE = ("compile", "compiling", "lease_wait", "prefault")

#: Public modules that are no attribute of the package.
MORE_MODULES = (
    "dask_bigfft.config",
    "dask_bigfft.integrations.array_backend",
    "dask_bigfft.integrations.fftlog",
    "dask_bigfft.testing.clusters",
    "dask_bigfft.testing.devices",
    "dask_bigfft.testing.faults",
    "dask_bigfft.testing.oracles",
    "dask_bigfft.testing.strategies",
)


# --- names ----------------------------------------------------------------------------------


def parameters_text(function: Any) -> str:
    """Return the parameters of a callable with their defaults, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def described(value: Any) -> Any:
    """Return the kind and the parameters of a public object, and the attributes of a class."""
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return {"class": f"({bases})", **attributes_of(value)}
    if callable(value):
        return parameters_text(value)
    return type(value).__name__


def attributes_of(kind: type) -> dict[str, str]:
    """Return the public attributes of a class, and its parameters.

    If a class lists its public names, they are the only ones.
    """
    attributes = {"": parameters_text(kind)}
    names = set(getattr(kind, "_public_names", ()))
    if not names:
        names = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
    for name in sorted(names):
        inherited = getattr(object, name, None) is not None or hasattr(Exception, name)
        if name.startswith("_") or inherited:
            continue
        value = inspect.getattr_static(kind, name, None)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        attributes[name] = parameters_text(value) if inspect.isfunction(value) else "attribute"
    return attributes


def public_modules() -> Iterator[types.ModuleType]:
    """Yield the modules whose names users may import."""
    yield dask_bigfft
    for name in dask_bigfft.__all__:
        value = getattr(dask_bigfft, name)
        if inspect.ismodule(value):
            yield value
    for path in MORE_MODULES:
        yield importlib.import_module(path)


def public_names() -> Surface:
    """Return the public names of each public module."""
    surface: Surface = {}
    for module in public_modules():
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        values = {name: getattr(module, name) for name in sorted(names)}
        surface[module.__name__] = {
            name: described(value)
            for name, value in values.items()
            if not inspect.ismodule(value) and name != "__version__"
        }
    return surface


def documented_names() -> Surface:
    """Return the objects that the reference pages document, by the paths that they give."""
    surface: Surface = {}
    directive = re.compile(
        r"^\.\. auto(?:class|function|module):: (\S+)$(?:\n   :members: (.+))?", re.M
    )
    for page in sorted((ROOT / "examples" / "guide").glob("api*.md")):
        for path, members in directive.findall(page.read_text(encoding="utf-8")):
            value = object_at(path)
            surface[path] = "module" if inspect.ismodule(value) else described(value)
            for member in filter(None, map(str.strip, members.split(","))):
                surface[f"{path}.{member}"] = described(getattr(value, member))
    return surface


def object_at(path: str) -> Any:
    """Return a module, or an object in a module, by its dotted path."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(object_at(module), name)


def results_of_calls() -> Surface:
    """Return the attributes of what public functions return: plans, reports, runs."""
    x = da.ones((64, 64), chunks=(16, 64))
    y = dask_bigfft.fft.fft2(x)
    y.compute(scheduler="sync")
    plan = dask_bigfft.plan(x, "fft2")
    report = observe.report(y)
    values = {
        "plan": plan,
        "plan.expected": plan.expected,
        "plan.expected.rounds[0]": plan.expected.rounds[0],
        "plan.exchanges[0]": plan.exchanges[0],
        "plan.machine": plan.machine,
        "plan.machine.profile": plan.machine.profile,
        "plan.spec": plan.spec,
        "plan.settings": plan.settings,
        "report": report,
        "report.runs[0]": report.runs[0],
        "report.runs[0].rows[0]": report.runs[0].rows[0],
    }
    return {name: attributes_of(type(value)) for name, value in values.items()}


def exceptions() -> Surface:
    """Return the classes above each public exception."""
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    return {
        name: " ".join(base.__name__ for base in kind.__mro__[1:-3]) for name, kind in kinds.items()
    }


def settings() -> Surface:
    """Return the settings without their descriptions."""
    names = ("default", "unit", "type", "enum", "minimum")
    return {
        key: {name: repr(getattr(setting, name)) for name in names}
        for key, setting in config.SETTINGS.items()
    }


# --- command line ---------------------------------------------------------------------------


def command_line() -> Surface:
    """Return the options that each command shows."""
    surface: Surface = {}
    for command in ("", "run", "plan", "calibrate"):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            cli.main([*filter(None, [command]), "--help"])
        surface[command] = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown.getvalue())))
    return surface


# --- JSON and metrics -----------------------------------------------------------------------


def keys_of(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys in a JSON value; names that a run invents become ``*``."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, f"{path}[]") for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    paths = set()
    for key, item in value.items():
        invented = re.search(r"://|[0-9a-f]{16}|/", key) is not None
        inner = f"{path}.{'*' if invented else key}".lstrip(".")
        paths |= {inner} | keys_of(item, inner)
    return paths


def fetched(client: Client, page: str) -> str:
    """Return a page of a scheduler's web server, by loopback."""
    port = client.cluster.scheduler.http_server.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def watched_cluster() -> Surface:
    """Return the keys, gauges and events that a registered cluster with a GPU tells."""
    heard: set[str] = set()

    def note(name: str, numbers: Any) -> None:
        if name not in BY_CHANCE:
            heard.update(f"{name}.{key}" for key in numbers)

    events.add_sink(note)
    try:
        with (
            simulated_devices(1 << 24),
            cluster_of(2, 1) as client,
        ):
            dask_bigfft.cluster.register(client)
            x = da.from_array(np.ones((64, 64)), chunks=(16, 64))
            for device in ("cpu", "gpu"):
                dask_bigfft.fft.fft2(x, device=device).compute()
            until(lambda: json.loads(fetched(client, "bigfft/json"))["runs"][-1]["phases"])
            state = json.loads(fetched(client, "bigfft/json"))
            gauges = set(re.findall(r"^(bigfft_\w+)\{([^}]*)\}", fetched(client, "metrics"), re.M))
            workers = client.scheduler_info()["workers"].values()
            metrics = [
                {name: told for name, told in worker["metrics"].items() if "bigfft" in name}
                for worker in workers
            ]
            dask_bigfft.cluster.unregister(client)
    finally:
        events.remove_sink(note)
    labels = {name: sorted(re.findall(r"(\w+)=", text)) for name, text in gauges}
    return {
        "json of the page": sorted(keys_of(state)),
        "metrics of workers": sorted(keys_of(metrics)),
        "gauges": labels,
        "events": sorted(heard),
    }


def json_of_runs() -> Surface:
    """Return the keys of a run's record, of the attributes of its result, and of a profile."""
    with empty_folder() as folder:
        begun_run.begin_and_interrupt(folder)
        record = json.loads((folder / "scratch" / "run.json").read_text())
        record.pop("plan")
        begun_run.resume(folder)
        result = json.loads((folder / "out.zarr" / "zarr.json").read_text())
    profile = json.loads(dask_bigfft.plan(da.ones(4), "fft").machine.profile.to_json())
    return {
        "run.json": sorted(keys_of(record)),
        "attributes of a result": sorted(keys_of(result["attributes"])),
        "profile": sorted(keys_of(profile)),
    }


def surface() -> Surface:
    """Return all of it."""
    with empty_folder() as folder, fixed_settings(folder, **{"bigfft.planner.small": 0}):
        return {
            "names": public_names(),
            "documented": documented_names(),
            "results": results_of_calls(),
            "exceptions": exceptions(),
            "settings": settings(),
            "command line": command_line(),
            "cluster": watched_cluster(),
            "files": json_of_runs(),
        }
