"""InferenceData in a Zarr store that grows by blocks and can be read while it does.

The arrays are as long as the run will be, but what readers are told is the number of draws that are
committed: rows are written first, then the one file with the metadata of all arrays is replaced as
a whole. So a process that is killed leaves a store that is whole, and rows behind those committed,
if any, are out of sight until they are written again. Readers that pass that file by, and ask for
each array's own metadata, are told of the draws when the run has ended, or nothing; of a run that
goes on, of those that it had.

The format is Zarr's version 2, which versions 2 and 3 of the package read and write.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import xarray as xr
from xarray import Dataset, DataTree, Variable
from xarray.conventions import decode_cf_variable, encode_cf_variable
from xarray.core import indexing

from pymc_deer.status import BackendError, ModelError, invalid_option
from pymc_deer.stored_rows import ATTRIBUTES, METADATA, RUN, StoredRows, StoredRun, metadata_at

_DIMS = "_ARRAY_DIMENSIONS"
"""Attribute by which xarray knows an array's dimensions."""

_DATE_UNIT = "numpy_unit"
"""Attribute of dates, which are stored as numbers: "s", "ms", "us" or "ns"."""

_ROWS_OF_COORDINATE = 2**20
"""Draws whose numbers, a coordinate, share a file."""

_INSTALL = "pip install 'zarr>=3.1.3'"

_TORN = re.compile(r"3\.(0\.|1\.[012]\b)")
"""Versions of Zarr that write into the file of a chunk, of which a kill leaves half."""


def _require_zarr() -> None:
    try:
        import zarr  # noqa: F401
    except ImportError as error:
        # Installed versions may not import beside others' numcodecs.
        raise BackendError(
            f"sample(store=...), sample(resume=...) and open_store need zarr: {_INSTALL}"
        ) from error


def require_zarr_to_write() -> None:
    """Refuse to go on without Zarr, or with one that cannot commit draws.

    Raises
    ------
    BackendError
        With the command that installs it.
    """
    _require_zarr()
    import zarr

    if _TORN.match(zarr.__version__):
        raise BackendError(
            f"zarr {zarr.__version__} writes into the files that a store has, so that a process "
            f"that is killed would leave half of one: {_INSTALL}"
        )


def local_path(place: str | PathLike[str]) -> Path:
    """A place as it is meant where it is given, whatever directory the process goes to."""
    # Of pathlib's own, a name that begins with ~ and is no user's is an error.
    return Path(os.path.expanduser(place)).absolute()


def open_store(path: str | PathLike[str]) -> DataTree:
    """The draws that are committed to a store, now; each is read when it is used.

    As ``xarray.open_datatree(path, engine="zarr")``, which asks for version 3 of zarr.

    Parameters
    ----------
    path
        What `pymc_deer.sample` was given as `store`; its run may be going on.

    Raises
    ------
    OptionError
        If there is no store of draws, and when draws are read whose file is not there any more, or
        is another run's.
    BackendError
        If Zarr is missing.

    Examples
    --------
    >>> import tempfile
    >>> import pymc as pm
    >>> import pymc_deer
    >>> place = tempfile.mkdtemp()
    >>> with pm.Model():
    ...     x = pm.Normal("x")
    ...     _ = pymc_deer.sample(store=place, backend="jax", window=1, quiet=True)
    >>> open_store(place).posterior.sizes["draw"]
    1000
    """
    _require_zarr()
    place = local_path(path) if isinstance(path, str | PathLike) else None
    if place is None or not (place / METADATA).exists():
        shown = os.fspath(path) if isinstance(path, PathLike) else path
        expected = "a directory that sample(store=...) has written draws to"
        raise invalid_option("open_store", "path", shown, expected)
    root, arrays = _committed(place)
    return DataTree.from_dict(
        {f"/{group}": _dataset(root[group], made) for group, made in arrays.items()}
    )


def _committed(path: Path) -> tuple[Any, dict[str, dict[str, StoredRows]]]:
    """A store as it was committed last, and its arrays by group and name."""
    import zarr

    metadata = metadata_at(path)["metadata"]
    kwargs: dict[str, Any] = {} if _is_zarr_2() else {"zarr_format": 2}
    # Of the file that is replaced as a whole: all arrays are of one length.
    root = zarr.open_consolidated(os.fspath(path), mode="r", **kwargs)
    run, arrays = StoredRun.at(path), dict[str, dict[str, StoredRows]]()
    for key in metadata:
        match key.split("/"):
            case [group, ".zgroup"]:
                arrays.setdefault(group, {})
            case [group, name, ".zarray"]:
                rows = StoredRows(root[f"{group}/{name}"], path / group / name, run)
                arrays.setdefault(group, {})[name] = rows
    return root, arrays


class DrawStore:
    """A Zarr store whose arrays with a dimension ``draw`` grow.

    Parameters
    ----------
    path
        Directory of a store that :meth:`create` has made.
    sizes
        By group, the draws that it will have in the end.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int]) -> None:
        self.path, self.sizes = path, dict(sizes)
        self._metadata = metadata_at(path)
        # Zarr 3 looks for it before it reads what is known of all.
        self._settle(".zgroup")
        for rows in (rows for made in _committed(path)[1].values() for rows in made.values()):
            rows.refuse_lost()
        committed = {group: self._entries[f"{group}/draw/.zarray"]["shape"][0] for group in sizes}
        # Arrays keep the length that they are opened with: rows are written beyond what is told.
        _set_lengths(self._entries, sizes)
        self.settle()
        with _writing_all_chunks():
            root = _open(path, "r+")
            growing = {group: _growing(self._entries, group) for group in sizes}
            self._arrays = {
                group: {key.split("/")[1]: root[os.path.dirname(key)] for key in keys}
                for group, keys in growing.items()
            }
            for group, size in sizes.items():
                _number(self._arrays[group].pop("draw"), committed[group], size)
        _set_lengths(self._entries, committed)
        self.settle()
        self._run = StoredRun.at(path)

    @classmethod
    def create(
        cls, path: Path, template: DataTree, sizes: Mapping[str, int], rows_per_chunk: int
    ) -> "DrawStore":
        """A store without draws.

        Parameters
        ----------
        path
            A directory that is empty or does not exist.
        template
            What the run will be but for its draws, of which it has any number.
        rows_per_chunk
            Draws of a variable that share a file.

        Raises
        ------
        ModelError
            If values or coordinates are of a type that Zarr has no name for.
        """
        groups = {group: data.to_dataset() for group, data in template.children.items()}
        plain = {
            group: {str(name): _plain(str(name), v) for name, v in data.variables.items()}
            for group, data in groups.items()
        }
        with _writing_all_chunks():
            root = _open(path, "a")
            root.attrs[RUN] = uuid4().hex
            for group, variables in plain.items():
                made = root.create_group(group)
                made.attrs.update(_json(groups[group].attrs))
                for name, variable in variables.items():
                    _create_array(made, name, variable, sizes.get(group, 0), rows_per_chunk)
        # In the template's order, which readers keep.
        keys = [".zgroup", ATTRIBUTES]
        for group, variables in plain.items():
            keys += [f"{group}/.zgroup", f"{group}/{ATTRIBUTES}"]
            keys += [
                f"{group}/{name}/{kind}" for name in variables for kind in (".zarray", ".zattrs")
            ]
        metadata = {key: json.loads((path / key).read_text()) for key in keys}
        # From the first moment at which it can be read it has no draws.
        _set_lengths(metadata, dict.fromkeys(sizes, 0))
        _replace(path / METADATA, {"zarr_consolidated_format": 1, "metadata": metadata})
        return cls(path, sizes)

    @staticmethod
    def groups(path: Path) -> set[str]:
        """Names of the groups of the store at `path`."""
        keys = metadata_at(path)["metadata"]
        return {key.split("/")[0] for key in keys if "/" in key}

    def refuse_other(self) -> None:
        """See :meth:`pymc_deer.stored_rows.StoredRun.refuse_other`."""
        self._run.refuse_other()

    def write(self, group: str, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Put rows at position `first`, out of readers' sight.

        Parameters
        ----------
        columns
            Rows of the group's variables, (C, n, ...), and perhaps of others.

        Raises
        ------
        OptionError
            If the store is not there any more, or another run's.
        """
        self.refuse_other()
        for name, array in self._arrays[group].items():
            array[:, first : first + columns[name].shape[1]] = columns[name]

    def commit(self, lengths: Mapping[str, int], attrs: Mapping[str, Mapping[str, Any]]) -> None:
        """Let readers see so many draws by group, and more attributes of groups."""
        for group, more in attrs.items():
            self._entries[f"{group}/.zattrs"].update(_json(more))
        _set_lengths(self._entries, lengths)
        _replace(self.path / METADATA, self._metadata)

    def settle(self) -> None:
        """Write each array's own metadata, as committed, for readers that ask for it."""
        for key in self._entries:
            self._settle(key)

    def _settle(self, key: str) -> None:
        file, entry = self.path / key, self._entries[key]
        # Copies may leave out files whose names begin with a dot.
        if not file.exists() or json.loads(file.read_text()) != entry:
            _replace(file, entry)

    @property
    def _entries(self) -> dict[str, Any]:
        return self._metadata["metadata"]


def _set_lengths(entries: Mapping[str, Any], lengths: Mapping[str, int]) -> None:
    """Have entries of metadata tell so many draws by group."""
    for group, length in lengths.items():
        for key in _growing(entries, group):
            entries[key]["shape"][_axis(entries, key)] = length


def _growing(entries: Mapping[str, Any], group: str) -> list[str]:
    """Keys of the group's arrays that have draws."""
    keys = (key for key in entries if key.startswith(f"{group}/") and key.endswith("/.zarray"))
    return [key for key in keys if _axis(entries, key) >= 0]


def _axis(entries: Mapping[str, Any], key: str) -> int:
    dims = entries[key.replace(".zarray", ".zattrs")][_DIMS]
    return dims.index("draw") if "draw" in dims else -1


def replace_file(path: Path, content: bytes) -> None:
    """Have a file hold `content`, or what it held before: nothing between them is ever seen."""
    beside = path.with_name(f"{path.name}.partial")
    beside.write_bytes(content)
    os.replace(beside, path)


def _replace(path: Path, content: Any) -> None:
    replace_file(path, json.dumps(content, indent=1).encode())


def _open(path: Path, mode: str) -> Any:
    import zarr

    kwargs: dict[str, Any] = {"mode": mode}
    if not _is_zarr_2():
        kwargs |= {"zarr_format": 2, "use_consolidated": False}
    return zarr.open_group(str(path), **kwargs)


def _writing_all_chunks() -> AbstractContextManager[Any]:
    """Where arrays are opened that write chunks of zeros too: one that is not there is lost."""
    import zarr

    if _is_zarr_2():
        return nullcontext()
    config: Any = zarr.config  # pyright: ignore[reportAttributeAccessIssue]
    return config.set({"array.write_empty_chunks": True})


def _is_zarr_2() -> bool:
    import zarr

    return zarr.__version__.startswith("2.")


def _create_array(
    group: Any, name: str, variable: Variable, n_draws: int, rows_per_chunk: int
) -> None:
    """One of a template's variables; with its values if it has no draws, or is their coordinate."""
    # Not by their names: two axes may have the same one.
    axes = [
        (dim, n_draws if dim == "draw" else size)
        for dim, size in zip(variable.dims, variable.shape, strict=True)
    ]
    shape = tuple(size for _, size in axes)
    if len(axes) == 1:
        rows_per_chunk = min(max(n_draws, rows_per_chunk), _ROWS_OF_COORDINATE)
    # Of any number of draws: a run may go on to more.
    chunks = tuple(rows_per_chunk if dim == "draw" else max(1, size) for dim, size in axes)
    create = group.create_dataset if _is_zarr_2() else group.create_array
    # Readers take a fill value for missing data.
    array = create(name, shape=shape, chunks=chunks, dtype=variable.dtype, fill_value=None)
    array.attrs.update({**_json(variable.attrs), _DIMS: [str(dim) for dim in variable.dims]})
    if "draw" not in variable.dims:
        array[...] = variable.values
    elif variable.dims == ("draw",) and n_draws:
        array[0] = variable.values[0]


def _number(draws: Any, first: int, size: int) -> None:
    """Give draws from `first` on the numbers that follow on that of the first of all."""
    for begin in range(first, size, _ROWS_OF_COORDINATE):
        rows = np.arange(begin, min(begin + _ROWS_OF_COORDINATE, size))
        draws[begin : begin + len(rows)] = draws[0] + rows


def _dataset(group: Any, arrays: Mapping[str, StoredRows]) -> Dataset:
    variables = {}
    for name, rows in arrays.items():
        attrs = dict(rows.array.attrs)
        dims, unit = attrs.pop(_DIMS), attrs.pop(_DATE_UNIT, None)
        # As xarray has its own arrays on disk: to write to one changes it in memory alone.
        lazy: Any = indexing.LazilyIndexedArray(rows)
        values = indexing.CopyOnWriteArray(lazy)
        variables[name] = Variable(dims, values, attrs)
        if unit is not None:
            coder = xr.coders.CFDatetimeCoder(time_unit=unit)
            variables[name] = decode_cf_variable(name, variables[name], decode_times=coder)
    return xr.decode_cf(Dataset(variables, attrs=dict(group.attrs)))


def _plain(name: str, variable: Variable) -> Variable:
    """The variable in types that Zarr has: dates as numbers, texts of one length.

    Raises
    ------
    ModelError
        If it has values of several types.
    """
    if variable.dtype.kind in "OT":
        texts = [str(value) for value in variable.values.ravel()]
        if not all(isinstance(value, str) for value in variable.values.ravel()):
            raise ModelError(
                f"{name}: its values are of several types, or of one that a store has no name for. "
                "Give coordinates and data of numbers, texts or dates."
            )
        values = np.array(texts).reshape(variable.shape)
        return Variable(variable.dims, values, variable.attrs)
    bare = Variable(variable.dims, variable.values, variable.attrs, {"_FillValue": None})
    # Dates alone need a code.
    coded = encode_cf_variable(bare, name=name) if variable.dtype.kind in "mM" else bare
    if variable.dtype.kind == "M":
        coded.attrs[_DATE_UNIT] = np.datetime_data(variable.dtype)[0]
    return coded


def _json(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes in types that JSON has."""
    return {str(name): v.item() if isinstance(v, np.generic) else v for name, v in attrs.items()}
