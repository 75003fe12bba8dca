"""Datasets of HDF5 files, and all files that hold their values.

A dataset may be reached through links into other files. It may be virtual, which means assembled
from datasets of other files. Its values may be in plain files beside it (external storage). If a
file of a virtual dataset is missing, HDF5 silently returns the fill value; if a plain file is too
short, it returns zeros. h5py is imported only when it is needed.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.errors import raise_invalid
from dask_bigfft.storage.formats import ATTRIBUTES, UNREADABLE, package


def _h5py() -> Any:
    return package("h5py", "HDF5 files", "hdf5")


class H5Dataset:
    """Dataset of an HDF5 file for dask: the file is opened again for every block.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Name of the dataset.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        with _h5py().File(path, "r") as file:
            dataset = file[name]
            self.shape = dataset.shape
            self.dtype = dataset.dtype
            self.ndim = dataset.ndim
            self.chunks: tuple[int, ...] | None = dataset.chunks
            self.attributes = {}
            for key in ATTRIBUTES:
                if key in dataset.attrs:
                    self.attributes[key] = _attribute(dataset.attrs[key])
            scales = dataset.dims if self.shape else ()
            self.dims = [_dim_name(scale) for scale in scales]

    def __getitem__(self, index: Any) -> Array:
        with _h5py().File(self.path, "r") as file:
            return np.asarray(file[self.name][index])

    def read_into(self, region: tuple[slice, ...], out: Array) -> None:
        """Read a region into an array of its shape and dtype, in row-major order."""
        with _h5py().File(self.path, "r") as file:
            file[self.name].read_direct(out, region)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        files = []
        for path in self.places().files:
            if path.exists():
                status = path.stat()
                files.append((str(path), status.st_size, status.st_mtime_ns))
        return "H5Dataset", str(self.path), self.name, files

    def places(self) -> "Places":
        """Return the files that hold the values, as they are now."""
        places = Places({self.path: None})
        places.look(self.path, self.name)
        return places


def _attribute(value: Any) -> Any:
    """Return an attribute as a Python value: NetCDF writes arrays of one number, and bytes."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_hdf5(path: Path) -> bool:
    """Return True if a file has the signature of HDF5."""
    with path.open("rb") as handle:
        return handle.read(8) == b"\x89HDF\r\n\x1a\n"


def open_hdf5(path: Path, component: str | None) -> H5Dataset:
    """Return a dataset of a file: the one of a name, or the only one that is no dimension scale.

    Raises
    ------
    ArgumentError
        If there is no such dataset, if it has no shape, or if the file cannot be read.
    """
    try:
        with _h5py().File(path, "r") as file:
            if component is not None and _dataset(file, component) is not None:
                own_names = [component]
                all_names = [component]
            else:
                own_names, all_names = _names(file)
        dataset = None
        if len(own_names) == 1 and component in (None, own_names[0]):
            dataset = H5Dataset(path.resolve(), own_names[0])
    except UNREADABLE as error:
        raise_invalid("source", str(path), f"an HDF5 file that can be read ({error})")
    if dataset is None:
        need = f"the name of a dataset in {path}: {', '.join(sorted(all_names)) or 'none'}"
        raise_invalid("component", component, need)
    if dataset.shape is None:
        need = f"a dataset that holds values: {own_names[0]} is a null dataset"
        raise_invalid("source", str(path), need)
    return dataset


def _names(file: Any) -> tuple[list[str], list[str]]:
    """Return the names of a file's own datasets, and of these and soft or external links to any.

    Dimension scales, which are coordinates, are left out beside other datasets.
    Of a dataset with several hard links, both have one name alone: HDF5 visits an object once.
    """
    h5py = _h5py()
    objects = dict[str, Any]()
    links = dict[str, Any]()
    file.visititems(objects.__setitem__)
    file.visititems_links(links.__setitem__)
    datasets = {name: value for name, value in objects.items() if isinstance(value, h5py.Dataset)}
    variables = [name for name, value in datasets.items() if not value.is_scale]
    own_names = variables or list(datasets)
    all_names = list(own_names)
    for name, link in links.items():
        is_own = isinstance(link, h5py.HardLink)
        if not is_own and _dataset(file, name) is not None:
            all_names.append(name)
    return own_names, all_names


def _dataset(group: Any, name: str) -> Any:
    """Return a dataset by its name; None if there is none."""
    try:
        value = group.get(name)
    except (KeyError, OSError, RuntimeError):  # a broken link, or damaged data
        return None
    return value if isinstance(value, _h5py().Dataset) else None


# --- files of a dataset ---------------------------------------------------------------------


@dataclass
class Places:
    """Files of a dataset's values.

    Parameters
    ----------
    files : dict of Path
        Keys: the file itself, then files of links on the way, and files that hold values.
    missing : list of str
        Missing parts of the dataset.
    """

    files: dict[Path, None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    _seen: set[tuple[Path, str]] = field(default_factory=set)

    def look(self, path: Path, name: str) -> bool | None:
        """Collect all files of a dataset's values; return True if the dataset exists.

        The result is None if its file cannot be read. HDF5 reports that when it reads values.

        Raises
        ------
        ArgumentError
            If the dataset has another size than its shape and type imply.
        """
        if (path, name) in self._seen:
            return True
        self._seen.add((path, name))
        try:
            file = _h5py().File(path, "r")
        except OSError:
            return None
        with file:
            dataset = _dataset(file, name)
            if dataset is None:
                return False
            _check_size(dataset, path)
            self.files |= dict.fromkeys(_linked_files(file, name))
            self._plain(dataset, path)
            sources = dataset.virtual_sources() if dataset.is_virtual else ()
            for source in sorted({(source.file_name, source.dset_name) for source in sources}):
                self._virtual(dataset, path, source)
        return True

    def _plain(self, dataset: Any, own: Path) -> None:
        """Collect plain files of a dataset's values (external storage)."""
        prefix = dataset.id.get_access_plist().get_efile_prefix()
        external = dataset.external or ()
        unread = dataset.nbytes if external else 0  # nbytes fails on a damaged dataset
        for name, begins, room in external:
            nbytes = min(room, unread)
            unread -= nbytes
            file = _file(
                name,
                own,
                "HDF5_EXTFILE_PREFIX",
                prefix,
                Path(),
            )
            if file is None:
                continue
            self.files[file] = None
            lacks = begins + nbytes - file.stat().st_size
            if lacks > 0:
                self.missing.append(f"{lacks} bytes at the end of {file}")

    def _virtual(self, dataset: Any, own: Path, source: tuple[str, str]) -> None:
        """Collect the files of one source of a virtual dataset, whose names may be numbered."""
        prefix = dataset.id.get_access_plist().get_virtual_prefix()
        is_numbered = any("b" in re.findall("%(.)", name) for name in source)
        for number in count():
            file_name, name = (_numbered(part, number) for part in source)
            exists = self._look_in_source(
                file_name,
                name,
                own,
                prefix,
            )
            if exists is False and not is_numbered:  # numbered sources end at a gap
                self.missing.append(f"{name} in {file_name}")
            if not exists or not is_numbered:
                return

    def _look_in_source(
        self,
        file_name: str,
        name: str,
        own: Path,
        prefix: bytes,
    ) -> bool | None:
        """Collect the files of a dataset in the file of a source; return as `look` does."""
        file: Path | None = own
        if file_name != ".":
            file = _file(
                file_name,
                own,
                "HDF5_VDS_PREFIX",
                prefix,
                own.parent,
            )
        if file is None:
            return False
        exists = self.look(file, name)
        if exists is not False:
            self.files[file] = None
        return exists


def _dim_name(dim: Any) -> str:
    """Return the name of a dimension: that of its scale if it has one, else its label."""
    return str(dim[0].name.rpartition("/")[2] if len(dim) else dim.label)


def _check_size(dataset: Any, path: Path) -> None:
    """Raise an error if a contiguous dataset has another size than its shape and type imply.

    HDF5 checks the sizes of chunks, but reads the first values of a dataset that is too long.
    """
    if dataset.id.get_create_plist().get_layout() != _h5py().h5d.CONTIGUOUS:
        return
    nbytes = dataset.id.get_storage_size()
    count = dataset.id.get_space().get_simple_extent_npoints()
    implied = count * dataset.id.get_type().get_size()
    if nbytes and nbytes != implied:  # 0 before the first value is written
        need = f"an HDF5 file whose dataset {dataset.name} has {implied} bytes, for its shape "
        need += f"{dataset.shape} and type {dataset.dtype}; it has {nbytes}"
        raise_invalid("source", str(path), need)


def _numbered(name: str, number: int) -> str:
    """Return a name with a number in place of ``%b``; ``%%`` stands for one ``%``.

    >>> _numbered("a%b of 100%%b", 7)
    'a7 of 100%b'
    """
    texts = {"b": str(number), "%": "%"}
    return re.sub("%([b%])", lambda match: texts[match[1]], name)


def _linked_files(group: Any, name: str) -> Iterator[Path]:
    """Yield the files of the links on the way to an existing object."""
    h5py = _h5py()
    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True)
        own = Path(group.file.filename)
        if isinstance(link, h5py.SoftLink):
            start = group.file["/"] if link.path.startswith("/") else group
            yield from _linked_files(start, link.path)
        elif isinstance(link, h5py.ExternalLink):
            linked = _file(
                link.filename,
                own,
                "HDF5_EXT_PREFIX",
                b"",
                own.parent,
            )
            if linked is not None:
                yield linked
                with h5py.File(linked, "r") as file:
                    yield from _linked_files(file["/"], link.path)
        group = group[part]


def _file(
    name: str,
    own: Path,
    variable: str,
    prefix: bytes,
    beside: Path,
) -> Path | None:
    """Return the file that HDF5 finds for a name in another file, or None.

    Parameters
    ----------
    name : str
        Name in the other file.
    own : Path
        The other file.
    variable, prefix
        Environment variable and prefix of the dataset: folders that are searched first.
    beside : Path
        Folder that is searched next.
    """
    folders = []
    for text in (*os.environ.get(variable, "").split(":"), prefix.decode()):
        if text:
            folders.append(Path(text.replace("${ORIGIN}", str(own.parent))))
    names = [name]
    if Path(name).is_absolute():
        names.append(Path(name).name)
    for folder in (*folders, beside, Path()):
        for relative in names:
            path = folder / relative
            if path.is_file():
                return path.resolve()
    return None
