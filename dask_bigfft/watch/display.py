"""Runs shown while they go on: as lines of text, or as a table of bars in a notebook.

What is shown comes as `Meter.as_dict` gives it, from this process or from a cluster's scheduler.
Imports dask's callbacks, `events`, `planner` and this room.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol, TextIO

from dask.callbacks import Callback

from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds
from dask_bigfft.watch.meter import SHOWN, Board, is_running, label_of, line_of

#: Seconds between lines where the output is no terminal, and between updates where it is.
SPARSE, OFTEN = 10.0, 0.1

Runs = Sequence[Mapping[str, Any]]


class Display(Protocol):
    """Somewhere to show runs."""

    def show(self, runs: Runs) -> None:
        """Show where runs stand, if it is time to."""

    def close(self, runs: Runs) -> None:
        """Show where runs stand at the end; nothing where none has begun."""


class TextDisplay:
    """Lines of text: one that is rewritten on a terminal, a few of them elsewhere.

    Parameters
    ----------
    stream : text stream
        Where.
    now : callable
        Gives the time in seconds.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.now = stream, now
        self.terminal = stream.isatty()
        self._shown, self._label, self._width = -1e9, "", 0

    def show(self, runs: Runs) -> None:
        """Show where runs stand, if it is time to."""
        now, label = self.now(), label_of(runs) if runs else ""
        if self.terminal:
            if now - self._shown >= OFTEN:
                self._rewrite(runs)
                self._shown = now
        elif label != self._label or now - self._shown >= SPARSE:
            self.stream.write(f"{line_of(runs)}\n")
            self.stream.flush()
            self._shown, self._label = now, label

    def _rewrite(self, runs: Runs) -> None:
        """Put a line in the place of the one that stands there."""
        done, total = (sum(run[key] for run in runs) for key in ("bytes_done", "bytes_total"))
        filled = 20 * done // total if total else 0
        line = f"[{'#' * filled}{'.' * (20 - filled)}] {line_of(runs)}"
        self.stream.write(f"\r{line.ljust(self._width)}")
        self.stream.flush()
        self._width = len(line)

    def close(self, runs: Runs) -> None:
        """Show the last state and end the line; take it away where nothing has begun."""
        if not runs:
            self.stream.write(f"\r{'':{self._width}}\r" if self._width else "")
            self.stream.flush()
        elif self.terminal:
            self._rewrite(runs)
            self.stream.write("\n")
            self.stream.flush()
        else:
            self.show(runs)


class NotebookDisplay:
    """A table with a bar for every stage, which is redrawn where it stands.

    Parameters
    ----------
    display : callable
        IPython's `display`.
    html : type
        IPython's `HTML`.
    """

    def __init__(self, display: Callable[..., Any], html: Callable[[str], Any]) -> None:
        self._html = html
        self._handle = display(html(runs_html([])), display_id=True)
        self._shown = -1e9

    def show(self, runs: Runs) -> None:
        """Draw the table again, if it is time to."""
        now = time.monotonic()
        if now - self._shown >= 3 * OFTEN:
            self._shown = now
            self._handle.update(self._html(runs_html(runs)))

    def close(self, runs: Runs) -> None:
        """Draw the table again, or nothing where nothing has begun."""
        self._handle.update(self._html(runs_html(runs) if runs else ""))


def runs_html(runs: Runs) -> str:
    """Return runs as HTML: a line for each, and a bar for each of its stages."""
    parts = []
    for run in runs:
        left = f", {human_seconds(run['left'])} left" if run["left"] is not None else ""
        seconds = run.get("compiled", 0.0)
        compiled = f", {human_seconds(seconds)} of compiling before" if seconds >= SHOWN else ""
        title = f"{run['name']} of {tuple(run['shape'])} {run['dtype']}: {run['rounds']}"
        speed = human_count(run["bytes_per_second"], "B/s")
        parts.append(
            f"<p><b>{escape(title)}</b><br>{escape(run['state'])}, "
            f"{human_bytes(run['bytes_done'])} of {human_bytes(run['bytes_total'])}, {speed}, "
            f"{human_seconds(run['elapsed'])} elapsed{compiled}{left}</p>"
        )
        rows = "".join(
            f'<tr><td>{escape(stage["label"])}</td><td><progress value="{stage["done"]}" '
            f'max="{stage["total"]}"></progress></td><td>{stage["done"]} of {stage["total"]} '
            f"blocks</td><td>{human_bytes(stage['nbytes'])}</td></tr>"
            for stage in run["stages"]
        )
        parts.append(f"<table>{rows}</table>")
    return f'<div class="bigfft-progress">{"".join(parts) or "<p>starting</p>"}</div>'


def display_here(stream: TextIO | None = None) -> Display:
    """Return a display for where this runs: a notebook's cell, else lines on `stream` (stderr)."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if stream is None and shell is not None and hasattr(shell, "kernel"):
        return NotebookDisplay(ipython.display.display, ipython.display.HTML)  # type: ignore[union-attr]
    return TextDisplay(sys.stderr if stream is None else stream)


class LocalProgress(Callback):  # type: ignore[misc, unused-ignore]
    """Shows the transforms of a scheduler that runs in this process.

    Parameters
    ----------
    display : Display
        Where.
    board : Board, optional
        Where they are counted.
    """

    def __init__(self, display: Display, board: Board | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.display, self.board = display, Board() if board is None else board
        self._lock = threading.Lock()

    def __enter__(self) -> "LocalProgress":
        add_sink(self._hear)
        super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]
        remove_sink(self._hear)

    def _hear(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Take in an event, in the thread of a task."""
        if self.board.hear(name, numbers):
            self._show()

    def _show(self) -> None:
        with self._lock:
            self.display.show(self.board.runs())

    def _start_state(self, dsk: Mapping[Any, Any], state: Any) -> None:
        if self.board.expect(dsk.items()):
            self._show()

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.board.begin(key)

    def _posttask(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        if self.board.add(key) is not None:
            self._show()

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        if failed:
            for meter in self.board.meters.values():
                meter.fail("erred")
        if self.board.meters and not is_running(self.board.runs()):
            self.display.close(self.board.runs())
