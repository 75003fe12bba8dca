"""Inverse short-time transforms from file to file, and their continuation.

More slices make a longer record. The last slices of the spectra before may have reached beyond the
end of their record, and are others now::

    spectra before   |-----------------|
    spectra now      |------------------------------|
    stored samples   |  chunk  |  chunk  |  chu|
    computed again                       |  chunk  |  chunk  |
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import dask.array as da
import numpy as np

from dask_bigfft.runs.growing import GrowingRun, described, shrunk_rows
from dask_bigfft.runs.labels import numbers, of_samples, rate_of_spectra
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.inverse_short_time import (
    InverseCall,
    ParsedInverse,
    SampleArguments,
    parse_arguments,
    parse_stored_inverse,
)
from dask_bigfft.storage.targets import Labels
from dask_bigfft.transforms.spec import parse_axes


@dataclass(frozen=True)
class SamplesRun(GrowingRun):
    """Run of an inverse short-time transform on spectra as they are now; samples are added."""

    @cached_property
    def f_axis(self) -> int:
        """Axis of the frequencies in the spectra."""
        return self._axis_of("f_axis")

    @cached_property
    def t_axis(self) -> int:
        """Axis of the slices in the spectra."""
        return self._axis_of("t_axis")

    def _axis_of(self, argument: str) -> int:
        """Return the number of an axis of the spectra."""
        axis = getattr(self.request.slices, argument)
        (number,) = numbers((axis,), lambda: self.labels.names, argument)
        (parsed,) = parse_axes(argument, (number,), self.x.ndim)
        return parsed

    @property
    def axis(self) -> int:
        """Axis of the samples in the result."""
        return self.f_axis if self.f_axis < self.x.ndim - 1 else self.t_axis

    @property
    def grown_axis(self) -> int:
        """Axis of the samples in the result."""
        return self.axis

    @property
    def source_length(self) -> int:
        """Number of slices."""
        return int(self.x.shape[self.t_axis])

    @property
    def unit(self) -> str:
        """Name of what the source has along the axis of the slices."""
        return "slices"

    def _coordinate_rate(self, *, is_needed: bool) -> float | None:
        """Return the sampling rate that the frequencies remember; None without it."""
        rate, _ = rate_of_spectra(self.labels, self.f_axis)
        return rate

    @cached_property
    def choice(self) -> SampleArguments:
        """Samples of the result: by default as many as the record had, if the spectra know it."""
        slices = self.request.slices
        k1 = slices.k1
        if k1 is None:
            _, k1 = rate_of_spectra(self.labels, self.f_axis)
        return SampleArguments(
            slices.k0,
            k1,
            self.f_axis,
            self.t_axis,
        )

    @cached_property
    def parsed(self) -> ParsedInverse:
        """Arguments that are valid for the spectra."""
        return parse_arguments(
            self.x,
            self.window,
            self.choice,
            cast("SignalOptions", self.options),
        )

    def call(self, blocks: tuple[int, ...], first: int = 0) -> InverseCall:
        """Return the call for the samples from `first` on, in blocks of the result."""
        row_chunks = dict(zip(self._rows_in_source, self._without_axis(blocks), strict=True))
        return parse_stored_inverse(
            self.x.rechunk(row_chunks),
            self.window,
            self.choice,
            cast("SignalOptions", self.options),
            samples_per_block=blocks[self.axis],
            first_sample=first,
            reader=self.reader,
            writing=self.request.writing(self.dtype),
        )

    def computed(self, call: InverseCall) -> da.Array:
        """Return the lazy samples of a call."""
        return call.samples()

    @property
    def _rows_in_source(self) -> list[int]:
        """Axes of the spectra that are neither frequencies nor slices."""
        return [axis for axis in range(self.x.ndim) if axis not in (self.f_axis, self.t_axis)]

    def _without_axis(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return lengths of the result without that of the axis of the samples."""
        return (*lengths[: self.axis], *lengths[self.axis + 1 :])

    def _default_blocks(self, nbytes: int) -> tuple[int, ...]:
        """Return the shape of a block of a new result whose spectra have about `nbytes` bytes.

        It has the samples of the slices of a stored chunk, or of several, unless that is too large.
        """
        rows = [max(cut, default=1) or 1 for cut in self.x.chunks]
        stored_columns = rows[self.t_axis]
        rows[self.f_axis] = 1
        rows[self.t_axis] = 1
        hop = int(self.transform.hop)
        least = -(-int(self.transform.m_num) // hop)
        spectrum = self.x.shape[self.f_axis] * self.parsed.work_dtype.itemsize
        rows = shrunk_rows(
            rows,
            tuple(self._rows_in_source),
            least * spectrum,
            nbytes,
        )
        columns = max(least, nbytes // (math.prod(rows) * spectrum))
        if columns >= stored_columns >= least:
            columns = columns // stored_columns * stored_columns
        samples = columns * hop
        if not self.request.append:  # a longer record will need longer blocks
            samples = min(samples, self.count)
        blocks = [rows[axis] for axis in self._rows_in_source]
        blocks.insert(self.axis, samples)
        return tuple(blocks)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        shape = [self.x.shape[axis] for axis in self._rows_in_source]
        shape.insert(self.axis, self.parsed.stop - self.parsed.start)
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        return self.parsed.dtype

    def is_unchanged(self, record: Mapping[str, Any]) -> bool:
        """Return False: the last slices of a longer record may be others, and as many."""
        return False

    def first_changed(self, record: Mapping[str, Any]) -> int:
        """Return a sample before which all are those of the spectra when they had fewer slices.

        Slices that reached beyond the end of the record, at most as many as overlap, may be others
        now. Behind the earlier end of the samples, all are new.

        Parameters
        ----------
        record : mapping
            Attributes of the earlier result.
        """
        hop = int(self.transform.hop)
        overlap = -(-int(self.transform.m_num) // hop)
        changed_slice = int(record["slices"]) - overlap
        # SciPy leaves out the last slice that reaches into the samples if few of them are in it.
        last_slice = (self.parsed.start + int(record["end"])) // hop - overlap
        sample = min(changed_slice, last_slice) * hop - self.parsed.start
        return max(0, min(sample, int(record["end"])))

    def record(self) -> dict[str, Any]:
        """Return the attributes of a result."""
        return {**super().record(), "end": self.count}

    def result_labels(self) -> Labels:
        """Return names, attributes and coordinates of the result."""
        keywords = {
            **self.window_keywords,
            "dual_win": self.request.slices.dual_win,
            "k0": self.choice.k0,
            "k1": self.choice.k1,
        }
        labels = of_samples(
            self.labels,
            self.x,
            self.f_axis,
            self.t_axis,
            keywords,
        )
        return self.request.without_group(labels)

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of this kind of run."""
        dual_win = self.window.dual_win
        rows = [self.x.shape[axis] for axis in self._rows_in_source]
        return {
            "f_axis": self.f_axis,
            "t_axis": self.t_axis,
            "dual_win": None if dual_win is None else described(dual_win),
            "k0": int(self.choice.k0),
            "source": f"{self.x.dtype} in rows {rows}",
        }
