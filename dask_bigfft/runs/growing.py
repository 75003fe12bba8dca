"""Base of runs of short-time transforms, whose results grow with their sources."""

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft import config
from dask_bigfft.api.arguments import parse_chunks
from dask_bigfft.errors import raise_invalid
from dask_bigfft.runs.request import Done, RunRequest
from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan
from dask_bigfft.signal.segments import parse_rate
from dask_bigfft.signal.short_time import WindowArguments, parse_window
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.targets import Labels

#: Bytes of a block of spectra, unless a longer one is needed for a window.
BLOCK_NBYTES = 16 << 20

#: The same at the least, for a small memory limit.
LEAST_NBYTES = 1 << 16


@dataclass(frozen=True)
class GrowingRun:
    """Run of a short-time transform on a source as it is now.

    Parameters
    ----------
    request : RunRequest
        Request of the run.
    x : dask.array.Array
        The source.
    labels : Labels
        Names, attributes and coordinates of the source.
    reader : Reader or None
        Reader of the source, if any of its values can be read without their neighbours.
    """

    request: RunRequest
    x: da.Array
    labels: Labels
    reader: sources.Reader | None

    @property
    def axis(self) -> int:
        """Axis of the samples in the record."""
        raise NotImplementedError

    @property
    def grown_axis(self) -> int:
        """Axis along which the result grows."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        raise NotImplementedError

    @property
    def source_length(self) -> int:
        """Length of the source along the axis that grows."""
        raise NotImplementedError

    @property
    def unit(self) -> str:
        """Name of what the source has along the axis that grows, in the attributes of a result."""
        raise NotImplementedError

    def call(self, blocks: tuple[int, ...], first: int = 0) -> Any:
        """Return the call for the result from the index `first` on, in blocks of the result."""
        raise NotImplementedError

    def computed(self, call: Any) -> da.Array:
        """Return the lazy result of a call."""
        raise NotImplementedError

    def is_unchanged(self, record: Mapping[str, Any]) -> bool:
        """Return True if the source is known to be that of an earlier result.

        Parameters
        ----------
        record : mapping
            Attributes of the earlier result.
        """
        raise NotImplementedError

    def first_changed(self, record: Mapping[str, Any]) -> int:
        """Return an index before which the result is that of the source when it was shorter.

        Parameters
        ----------
        record : mapping
            Attributes of the earlier result.
        """
        raise NotImplementedError

    def result_labels(self) -> Labels:
        """Return names, attributes and coordinates of the result."""
        raise NotImplementedError

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of this kind of run for `arguments`."""
        raise NotImplementedError

    def _default_blocks(self, nbytes: int) -> tuple[int, ...]:
        """Return the shape of a block of a new result whose spectra have about `nbytes` bytes."""
        raise NotImplementedError

    def _coordinate_rate(self, *, is_needed: bool) -> float | None:
        """Return the sampling rate by the coordinates of the source; None without any."""
        raise NotImplementedError

    @cached_property
    def rate(self) -> float:
        """Sampling rate: that of the coordinate, or the given one, or 1."""
        fs = self.request.slices.fs
        if fs is not None:
            fs = parse_rate(fs)
        rate = self._coordinate_rate(is_needed=fs is None)
        if rate is None:
            return 1.0 if fs is None else fs
        if fs is not None and not np.isclose(rate, fs, rtol=1e-9, atol=0):
            name = self.labels.names[self.axis]
            raise_invalid("fs", fs, f"None, or {rate:.9g} as the coordinate {name} of the source")
        return rate

    @cached_property
    def window(self) -> WindowArguments:
        """Window and FFTs."""
        slices = self.request.slices
        return WindowArguments(
            win=slices.win,
            hop=slices.hop,
            fs=self.rate,
            fft_mode=slices.fft_mode,
            mfft=slices.mfft,
            scale_to=slices.scale_to,
            phase_shift=slices.phase_shift,
            dual_win=slices.dual_win,
        )

    @property
    def window_keywords(self) -> dict[str, Any]:
        """Keywords of the window and FFTs without the sampling rate."""
        slices = self.request.slices
        return {
            "win": slices.win,
            "hop": slices.hop,
            "fft_mode": slices.fft_mode,
            "mfft": slices.mfft,
            "scale_to": slices.scale_to,
            "phase_shift": slices.phase_shift,
        }

    @cached_property
    def transform(self) -> "scipy.signal.ShortTimeFFT":
        """SciPy's description of the transform."""
        return parse_window(self.window)

    @property
    def count(self) -> int:
        """Length of the result along the axis that grows."""
        return self.shape[self.grown_axis]

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of the function, without the chunks of the result."""
        return {
            name: value
            for name, value in self.request.options.items()
            if value is not None and name != "chunks"
        }

    def blocks(self) -> tuple[int, ...]:
        """Return the shape of a block of a new result.

        Blocks are halved until the forecast of the memory is below the limit.
        """
        nbytes = BLOCK_NBYTES
        while True:
            blocks = self.blocks_of(nbytes)
            plan = self.call(blocks).plan
            limit = plan.machine.memory_limit
            is_fixed = self.request.options.get("chunks") is not None or nbytes <= LEAST_NBYTES
            if is_fixed or limit is None or plan.expected.peak_host <= limit:
                plan.refuse_above_limit()
                return blocks
            nbytes //= 2

    def blocks_of(self, nbytes: int) -> tuple[int, ...]:
        """Return the given shape of a block of a new result, or one of about `nbytes` bytes."""
        chunks = self.request.options.get("chunks")
        if chunks is None:
            return self._default_blocks(nbytes)
        shape = self.shape
        own_chunks = tuple((length,) for length in shape)
        cuts = parse_chunks(chunks, own_chunks, shape, self.dtype) or own_chunks
        return tuple(max(cut, default=1) or 1 for cut in cuts)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that all parts of a result have in common, as JSON values."""
        transform = self.transform
        return {
            "kind": self.request.kind,
            "win": described(self.window.win),
            "hop": int(transform.hop),
            "fs": float(transform.fs),
            "fft_mode": str(transform.fft_mode),
            "mfft": int(transform.mfft),
            "scale_to": self.request.slices.scale_to,
            "phase_shift": self.request.slices.phase_shift,
            "dims": None if self.request.dims is None else list(self.request.dims),
            **self.own_arguments(),
        }

    def record(self) -> dict[str, Any]:
        """Return the attributes of a result."""
        return {
            "version": config.own_version(),
            "kind": self.request.kind,
            "axis": self.axis,
            self.unit: self.source_length,
            "arguments": self.arguments(),
        }

    def done(
        self,
        plan: SegmentPlan | OverlapAddPlan,
        started: float,
        first: int,
    ) -> Done:
        """Return the report of a run that made the result from the index `first` on.

        The run began when `time.perf_counter` was `started`.
        """
        count = self.count - first
        rows = math.prod(self.shape) // max(1, self.count)
        return Done(
            path=self.request.destination,
            plan=plan,
            dtype=str(self.x.dtype),
            read=math.prod(plan.shape) * self.x.dtype.itemsize if count else 0,
            written=count * rows * self.dtype.itemsize,
            seconds=time.perf_counter() - started,
            already=count == 0,
            component=targets.read_attributes(self.request.destination).get("array"),
            columns=(first, self.count),
            library=self.request.library,
        )


def described(window: Any) -> str:
    """Return the length of a window, and a hash of its values."""
    digest = hashlib.sha256(np.array(window, complex).tobytes()).hexdigest()[:16]
    return f"{len(window)} values {digest}"


def shrunk_rows(
    shape: list[int],
    axes: tuple[int, ...],
    row_nbytes: int,
    nbytes: int,
) -> list[int]:
    """Return a shape whose longest lengths are halved until a block has at most `nbytes`.

    If a single row has more, all lengths are 1.

    Parameters
    ----------
    shape : list of int
        Number of rows of a block along each axis; 1 along other axes than `axes`.
    axes : tuple of int
        Axes along which there are several rows.
    row_nbytes : int
        Bytes of one row.
    nbytes : int
        Maximum number of bytes of a block.
    """
    shrunk = list(shape)
    while axes and math.prod(shrunk) * row_nbytes > nbytes:
        longest = max(axes, key=lambda axis: shrunk[axis])
        if shrunk[longest] <= 1:
            break
        shrunk[longest] = -(-shrunk[longest] // 2)
    return shrunk
