"""DurableFiles: local files of a table are on the disk before a commit names them.

A message may be deleted from the CommitLog once it is in the table, so a loss of power must neither take its
file nor the metadata that leads to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from store.disk.files import sync_directory, sync_files


class DurableFiles(PyArrowFileIO):
    """PyIceberg's access to files, for a warehouse on this machine."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to be written, which is synced when it is closed."""
        scheme, host, path = self.parse_location(location, self.properties)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, host))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _DurableStream(super().create(overwrite), Path(self._path))


class _DurableStream:
    """A stream of PyArrow that is synced, with its new directories, when it is closed."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _DurableStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        sync_files([str(self._path)], self._path.parent)
        sync_directory(self._path.parent)
        sync_directory(self._path.parent.parent)
