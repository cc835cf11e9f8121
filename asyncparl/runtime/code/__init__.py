"""The driver's code, for machines that do not have it.

    roots.py   which folders hold it, and which files of them
    pack.py    one package of all of it
    store.py   the packages that a node has

A package is a zip of plain files:

    code/<n>/...   what lies in root n; in the worker code/<n> is an entry of `sys.path`
    files/...      what the user named; copied to the working folder of each job

Nothing in it is compressed, has a date or an owner, and the files are sorted, so that the same content is the same
bytes on every machine. A package is called by the SHA-256 of these bytes. This file holds what both sides agree on:
the limits, and what a zip must look like to be a package.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import IO

from asyncparl.errors import ProtocolError

MAX_BYTES = 64 << 20
"""All files of a package together."""

MAX_FILES = 10_000

MAX_NAME_BYTES = 1024

_LOCAL_BYTES, _CENTRAL_BYTES, _END_BYTES = 30, 46, 22
"""Of the headers in a zip: one before each file, one for each in the directory, and one at the end."""

MAX_PACKAGE_BYTES = MAX_BYTES + MAX_FILES * (2 * MAX_NAME_BYTES + _LOCAL_BYTES + _CENTRAL_BYTES) + _END_BYTES

_MAX_PARTS = 32
_MAX_PART_BYTES = 255
_NUM_SHOWN = 10

_PLACE = re.compile(r"code/(0|[1-9][0-9]{0,4})/.|files/.", re.DOTALL)
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\]")
_DRIVE = re.compile(r"[A-Za-z]:")

_UTF8_NAME = 0x800
_END = struct.Struct("<4s4H2LH")


def fault_of_name(name: str) -> str:
    """Why a package cannot have a member of this name; empty if it can."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    parts = name.split("/")
    if len(encoded) > MAX_NAME_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        return "its name is too long"
    if len(parts) > _MAX_PARTS:
        return "it is in too many folders"
    if _STRANGE.search(name):
        return "there are control characters or backslashes in its name"
    if not _PLACE.match(name):
        return "it is neither in code/<number>/ nor in files/"
    if any(part in ("", ".", "..") or _DRIVE.match(part) for part in parts):
        return "its name is no plain relative path"
    return ""


def open_package(file: IO[bytes], size: int) -> zipfile.ZipFile:
    """The zip, of which nothing but names, sizes and places has been read, and found to be right.

    Zips that others have made are refused as a rule, for instance because they are compressed.

    Raises:
        ProtocolError: it is no package; names the member that is wrong.
    """
    _check_end(file, size)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, struct.error) as error:
        raise ProtocolError(f"the zip cannot be read: {error}") from error
    _check_members(archive.infolist())
    return archive


def _check_end(file: IO[bytes], size: int) -> None:
    """Check the directory before it is parsed: a million members are a gigabyte of objects."""
    if size < _END_BYTES:
        raise ProtocolError("this is no zip")
    file.seek(size - _END_BYTES)
    signature, disk, start_disk, num_here, num, directory_size, offset, comment_size = _END.unpack(
        file.read(_END_BYTES)
    )
    if signature != b"PK\x05\x06" or comment_size or disk or start_disk or num_here != num:
        raise ProtocolError("this is no zip, or one of another kind")
    if num > MAX_FILES:
        raise ProtocolError(f"there are {num:,} files in the zip; at most {MAX_FILES:,} are allowed")
    if offset + directory_size + _END_BYTES != size or directory_size > num * (_CENTRAL_BYTES + MAX_NAME_BYTES):
        raise ProtocolError("the directory of the zip is not where it should be")
    file.seek(offset)
    directory = file.read(directory_size)
    # The second would make the reader look for the directory elsewhere.
    if directory.count(b"PK\x01\x02") != num or b"PK\x06\x07" in directory:
        raise ProtocolError("the directory of the zip holds something else than it says")


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    total = sum(member.file_size for member in members)
    if total > MAX_BYTES:
        raise ProtocolError(f"the files in the zip are {_mib(total)}; at most {_mib(MAX_BYTES)} are allowed")
    offset = 0
    for member in members:
        name = member.orig_filename
        if member.filename != name:  # an extra field says another one
            raise _refused(name, f"it is also called {member.filename[:200]!r}")
        if fault := fault_of_name(name) or _fault_of_member(member, offset):
            raise _refused(name, fault)
        offset += _LOCAL_BYTES + len(name.encode()) + member.file_size
    # In this order a folder is followed by what is in it.
    names = sorted((member.orig_filename for member in members), key=lambda name: name.replace("/", "\0"))
    for name, following in pairwise(names):
        if following == name:
            raise _refused(name, "it is there twice")
        if following.startswith(name + "/"):
            raise _refused(name, "it is a file and a folder")


def _refused(name: str, fault: str) -> ProtocolError:
    return ProtocolError(f"the zip has a member {name[:200]!r} that is not allowed: {fault}")


def _fault_of_member(member: zipfile.ZipInfo, offset: int) -> str:
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return "it is compressed"
    if member.flag_bits & ~_UTF8_NAME:
        return "it is encrypted, or special in another way"
    if not stat.S_ISREG(member.external_attr >> 16) or member.external_attr & 0xFFFF:
        return "it is no plain file"
    # Members that share bytes would be more when they are unpacked.
    return "" if member.header_offset == offset else "it does not follow on the one before it"


def too_large(sizes: Iterable[tuple[str, int]]) -> ValueError:
    """The error for files, as (path, size), that are more than `MAX_BYTES`."""
    by_size = sorted(sizes, key=lambda item: (-item[1], item[0]))
    total = sum(size for _, size in by_size)
    shown = [f"{_mib(size)}  {path}" for path, size in by_size[:_NUM_SHOWN]]
    return _limit_error(f"{_mib(total)}, and only {_mib(MAX_BYTES)} can be sent to other machines", shown)


def too_many(paths: Iterable[str]) -> ValueError:
    """The error for more than `MAX_FILES` files. `paths` are those that were found until then."""
    by_folder = Counter(os.path.dirname(path) for path in paths)
    shown = [f"{num:,} files  {folder}" for folder, num in by_folder.most_common(_NUM_SHOWN)]
    return _limit_error(f"more than the {MAX_FILES:,} files that can be sent to other machines", shown)


def _limit_error(what: str, shown: list[str]) -> ValueError:
    lines = "".join(f"\n    {line}" for line in shown)
    return ValueError(
        f"the program's code and extra files are {what}. The largest:{lines}\n"
        "To leave things out: name fewer extra files, move them away from the code, or into a folder whose name "
        "starts with a dot (it is never sent)."
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"
