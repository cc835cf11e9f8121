"""The packages that a node has, each unpacked in a folder of its own.

    <directory>/<digest>/code/<n>/...   entries of `sys.path`
    <directory>/<digest>/files/...      to be copied for each job
    <directory>/.<...>                  uploads and folders that are not finished

A package comes from a driver, which may run what it likes in its actors but shall reach nothing else: all names are
checked before a byte is unpacked. A folder with a digest for a name is complete; it came there by one rename. Its files
are read-only. Its folders are not, so that Python keeps the compiled code there for the next worker.

Several processes may use one directory. All methods block for as long as the disk takes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from asyncparl.errors import ProtocolError
from asyncparl.runtime.code import MAX_PACKAGE_BYTES, open_package
from asyncparl.runtime.state import make_private_folder

LEFTOVER_AGE_S = 3600.0
"""What is not finished after so long was left by a process that was killed."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


class CodeStore:
    """The packages in one directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open it; make it if there is none, and remove what killed processes left.

        Raises:
            OSError: it cannot be used; also if others could write to it.
        """
        self._directory = Path(os.path.abspath(directory))
        make_private_folder(self._directory)
        self._remove_leftovers()

    def has(self, digest: str) -> bool:
        """Whether the package is here. Counts as a use of it.

        Raises:
            ProtocolError: this is no digest.
        """
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._folder(digest))
            return True
        return False

    def begin(self, digest: str, size: int) -> Incoming:
        """Receive a package of `size` bytes. End it with `commit` or `abort`.

        Raises:
            ProtocolError: this is no digest, or the size is not allowed.
            OSError: it cannot be stored.
        """
        folder = self._folder(digest)
        if not 0 < size <= MAX_PACKAGE_BYTES:
            raise ProtocolError(f"a package of {size} bytes; at most {MAX_PACKAGE_BYTES} are allowed")
        with _clear_os_errors(_cannot_store(folder)):
            fd, upload = tempfile.mkstemp(prefix=".upload-", dir=self._directory)
        return Incoming(folder, size, Path(upload), fd)

    def path(self, digest: str) -> Path:
        """The folder of a package; names of its files are relative to it. Counts as a use of it.

        Raises:
            FileNotFoundError: it is not here.
        """
        if not self.has(digest):
            raise FileNotFoundError(f"there is no package {digest} in {self._directory}")
        return self._folder(digest)

    def roots(self, digest: str) -> list[str]:
        """What to put on `sys.path`, in order.

        Raises:
            FileNotFoundError: it is not here.
        """
        code = self.path(digest) / "code"
        return [str(code / name) for name in sorted(os.listdir(code), key=int)]

    def files_folder(self, digest: str) -> Path:
        """The folder of the extra files; it may be empty.

        Raises:
            FileNotFoundError: it is not here.
        """
        return self.path(digest) / "files"

    def link_files(self, digest: str, target: str | os.PathLike[str]) -> None:
        """Copy the extra files to a folder, which is made if there is none. The copies can be written.

        Raises:
            FileNotFoundError: it is not here.
            OSError: a file cannot be written; the folder may then hold some of them.
        """
        files, copies = self.files_folder(digest), Path(target)
        with _clear_os_errors(f"extra files cannot be copied to {target}"):
            copies.mkdir(parents=True, exist_ok=True)
            for path in sorted(files.rglob("*")):
                copy = copies / path.relative_to(files)
                if path.is_dir():
                    copy.mkdir(exist_ok=True)
                else:
                    _copy_writable(path, copy)

    def trim(self, max_bytes: int, keep: AbstractSet[str] = frozenset()) -> list[str]:
        """Remove the least recently used packages until the rest takes no more than `max_bytes`.

        Args:
            keep: digests of those that are in use.

        Returns:
            The digests of the packages that were removed.
        """
        used = sorted(self._usage())
        total = sum(size for _, size, _ in used)
        removed = []
        for _, size, digest in used:
            if total <= max_bytes:
                break
            if digest not in keep:
                self._remove(digest)
                removed.append(digest)
                total -= size
        return removed

    def _folder(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise ProtocolError(f"{digest[:80]!r} is no digest of a package")
        return self._directory / digest

    def _usage(self) -> Iterator[tuple[int, int, str]]:
        """When each package was last used, how many bytes it is, and its digest."""
        for path in list(self._directory.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # another process removes it
                if _DIGEST.fullmatch(path.name):
                    yield path.stat().st_mtime_ns, _size_of(path), path.name

    def _remove(self, digest: str) -> None:
        # Renamed first, so that nobody finds half of it.
        trash = Path(tempfile.mkdtemp(prefix=".trash-", dir=self._directory))
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.rename(self._directory / digest, trash / digest)
        shutil.rmtree(trash, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in list(self._directory.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if path.name.startswith(".") and path.lstat().st_mtime < time.time() - LEFTOVER_AGE_S:
                    _remove_path(path)


class Incoming:
    """A package on its way. After any error it is aborted: nothing of it is left."""

    def __init__(self, folder: Path, size: int, upload: Path, fd: int) -> None:
        """`folder` is where it shall be, `upload` the file that `fd` writes until then."""
        self._folder = folder
        self._digest = folder.name
        self._size = size
        self._upload = upload
        self._file = open(fd, "w+b", buffering=0)  # noqa: SIM115
        self._num_received = 0
        self._hash = hashlib.sha256()

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append to it.

        Raises:
            ProtocolError: it is larger than was announced.
            OSError: it cannot be stored, usually because the disk is full.
        """
        data = memoryview(chunk).cast("B")
        with self._or_abort():
            self._num_received += len(data)
            if self._num_received > self._size:
                raise ProtocolError(f"package {self._digest} is larger than the {self._size} bytes that were announced")
            self._hash.update(data)
            while data:
                data = data[self._file.write(data) :]

    def commit(self) -> Path:
        """Check it, and unpack it to its folder.

        Raises:
            ProtocolError: it is not what was announced, or a member is not allowed; says which.
            OSError: it cannot be stored, usually because the disk is full.
        """
        with self._or_abort():
            if self._num_received != self._size:
                raise ProtocolError(f"package {self._digest} ended after {self._num_received} of {self._size} bytes")
            if self._hash.hexdigest() != self._digest:
                raise ProtocolError(f"package {self._digest} holds something else than its name says")
            unpacked = Path(tempfile.mkdtemp(prefix=".unpack-", dir=self._folder.parent))
            try:
                self._unpack(unpacked)
                _move(unpacked, self._folder)
            finally:
                shutil.rmtree(unpacked, ignore_errors=True)
        self.abort()
        return self._folder

    def abort(self) -> None:
        """Forget it. Does nothing if it has ended already."""
        self._file.close()
        self._upload.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _or_abort(self) -> Iterator[None]:
        try:
            with _clear_os_errors(_cannot_store(self._folder)):
                yield
        except BaseException:
            self.abort()
            raise

    def _unpack(self, folder: Path) -> None:
        try:
            with open_package(self._file, self._size) as archive:
                for place in ("code", "files"):
                    (folder / place).mkdir()
                for member in archive.infolist():
                    _unpack_member(archive, member, folder)
        except (ProtocolError, zipfile.BadZipFile, EOFError, UnicodeDecodeError) as error:
            raise ProtocolError(f"package {self._digest} is refused: {error}") from error


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    target = folder / member.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    is_executable = member.external_attr >> 16 & stat.S_IXUSR
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o555 if is_executable else 0o444)
    with open(fd, "wb") as file, archive.open(member) as content:
        shutil.copyfileobj(content, file, _CHUNK_BYTES)


def _move(unpacked: Path, folder: Path) -> None:
    try:
        os.rename(unpacked, folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # Somebody was quicker, with the same content.
    os.utime(folder)


def _copy_writable(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644)


def _size_of(folder: Path) -> int:
    paths = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(path).st_size for path in paths)


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _cannot_store(folder: Path) -> str:
    return f"package {folder.name} cannot be stored in {folder.parent}"


@contextlib.contextmanager
def _clear_os_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
