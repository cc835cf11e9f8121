"""Packages that no driver of ours makes: refused with the name of what is wrong, and nothing is written anywhere."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.runtime.code import MAX_BYTES, MAX_FILES, fault_of_name
from asyncparl.runtime.code.store import CodeStore

PLAIN = (stat.S_IFREG | 0o644) << 16
CENTRAL = b"PK\x01\x02"
END = b"PK\x05\x06"

# Where fields are in an entry of the directory, and in the end of it.
FLAGS, COMPRESSED_SIZE, SIZE, COMMENT_SIZE, OFFSET = 8, 20, 24, 32, 42
END_DIRECTORY_SIZE = 12


def make_zip(files: dict[str, bytes], *, attributes: int = PLAIN, compression: int = zipfile.ZIP_STORED) -> bytearray:
    """A zip as ours are, with any names and attributes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo("x")
            info.filename = name  # only like this nobody repairs it
            info.external_attr = attributes
            archive.writestr(info, content, compression)
    return bytearray(buffer.getvalue())


def put(folder: Path, content: bytes | bytearray) -> Path:
    """Store it, in `folder/store`, under its own digest."""
    incoming = CodeStore(folder / "store").begin(hashlib.sha256(content).hexdigest(), len(content))
    incoming.write(content)
    return incoming.commit()


def all_paths(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def refusal(folder: Path, content: bytes | bytearray) -> str:
    """How it is refused. Nothing may be left."""
    with pytest.raises(ProtocolError) as caught:
        put(folder, content)
    assert all_paths(folder) == {"store"}
    return str(caught.value)


def central(content: bytes | bytearray, number: int = 0) -> int:
    """Where the entry of a member in the directory is."""
    position = -1
    for _ in range(number + 1):
        position = content.index(CENTRAL, position + 1)
    return position


def test_a_zip_made_like_this_is_stored_unless_there_is_something_wrong_with_it(tmp_path: Path) -> None:
    folder = put(tmp_path, make_zip({"code/0/a.py": b"a", "files/b/c": b"", "files/d": b"d"}))
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        "a.py": b"a",
        "c": b"",
        "d": b"d",
    }


# --- names ------------------------------------------------------------------------------------------------------

HOSTILE_NAMES = [
    *("../x", "..", "/etc/passwd", "//x", "code/0/../../../x", "files/../../x", "files/..", "files/a/.."),
    *("./files/x", "files/./x", "files//x", "files/x/", "code/0/", "code/x.py", "code/-1/x", "code/1e3/x", "x", ""),
    *("..\\x", "files/..\\..\\x", "\\\\server\\share", "C:/x", "C:x", "files/C:/x", "files/c:x", "FILES/x"),
    *("files/x\0", "files/x\0/../../y", "files/\n", "files/\x1b[2J", "code/0\0/x", "files/x\x7f"),
    *("files/" + "x" * 300, "files/" + "x/" * 600 + "x"),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_name_that_is_no_plain_relative_path_is_refused(tmp_path: Path, name: str) -> None:
    text = refusal(tmp_path, make_zip({"code/0/good.py": b"", name: b"hello"}))
    assert repr(name[:200]) in text
    assert "is not allowed" in text


spelled = st.lists(
    st.sampled_from([*("..", ".", "", "a", "b.py", "code", "0", "files", "C:", "...", " ", "~"), *"/\\\0\n:é"]),
    max_size=6,
)


@given(
    st.sampled_from(["", "/", "./", "../", "files/", "code/0/", "code/0/../"]), spelled, st.sampled_from(["/", "\\"])
)
@settings(max_examples=200)
def test_however_a_path_is_spelled_it_does_not_lead_out(start: str, parts: list[str], separator: str) -> None:
    name = start + separator.join(parts)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        if fault_of_name(name):
            refusal(folder, make_zip({name: b"hello"}))
            return
        where = put(folder, make_zip({name: b"hello"}))
        assert [path for path in folder.rglob("*") if path.is_file()] == [where / name]
        assert (where / name).read_bytes() == b"hello"


@pytest.mark.parametrize(
    ("names", "culprit", "fault"),
    [
        (["files/a", "files/b", "files/a"], "files/a", "there twice"),
        (["files/a", "files/a/b"], "files/a", "a file and a folder"),
        (["files/a/b/c", "files/a!", "files/a"], "files/a", "a file and a folder"),
        (["code/0/a/b", "code/0/a"], "code/0/a", "a file and a folder"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_for_one_place_are_refused(tmp_path: Path, names: list[str], culprit: str, fault: str) -> None:
    parts = [make_zip({name: b"x"}) for name in names]
    text = refusal(tmp_path, join(parts))
    assert repr(culprit) in text and fault in text


def join(zips: list[bytearray]) -> bytearray:
    """One zip of several, each with one member; unlike `zipfile` it takes the same name twice."""
    files, directory = bytearray(), bytearray()
    for content in zips:
        entry = content[central(content) : content.index(END)]
        struct.pack_into("<L", entry, OFFSET, len(files))
        files += content[: central(content)]
        directory += entry
    end = struct.pack("<4s4H2LH", END, 0, 0, len(zips), len(zips), len(directory), len(files), 0)
    return files + directory + end


# --- kinds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attributes",
    [
        *((kind | 0o777) << 16 for kind in (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK)),
        0,
        PLAIN | 0x10,
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path: Path, attributes: int) -> None:
    text = refusal(tmp_path, make_zip({"files/link": b"/etc/passwd"}, attributes=attributes))
    assert "'files/link'" in text and "no plain file" in text


def test_a_file_is_never_made_for_another_user_to_run_as_us(tmp_path: Path) -> None:
    folder = put(tmp_path, make_zip({"files/x": b""}, attributes=(stat.S_IFREG | 0o7777) << 16))
    assert stat.S_IMODE((folder / "files/x").stat().st_mode) & 0o7222 == 0


@pytest.mark.parametrize("flags", [1, 0x20, 0x40, 0x2000])
def test_what_is_encrypted_is_refused(tmp_path: Path, flags: int) -> None:
    content = make_zip({"files/x": b"hello"})
    struct.pack_into("<H", content, central(content) + FLAGS, flags)
    assert "encrypted" in refusal(tmp_path, content)


# --- more than it seems -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_is_compressed_is_refused(tmp_path: Path, compression: int) -> None:
    text = refusal(tmp_path, make_zip({"files/bomb": bytes(10_000_000)}, compression=compression))
    assert "'files/bomb'" in text and "it is compressed" in text


def test_more_bytes_than_are_allowed_are_refused_by_what_is_announced(tmp_path: Path) -> None:
    content = make_zip({"files/a": b"x", "files/b": b"x"})
    for number in range(2):
        for field in (SIZE, COMPRESSED_SIZE):
            struct.pack_into("<L", content, central(content, number) + field, MAX_BYTES // 2 + 1)
    assert "at most 64.0 MiB are allowed" in refusal(tmp_path, content)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    content = make_zip({"files/a": b"x" * 1000, "files/b": b"x" * 1000})
    struct.pack_into("<L", content, central(content, 1) + OFFSET, 0)
    text = refusal(tmp_path, content)
    assert "'files/b'" in text and "does not follow" in text


def test_more_files_than_are_allowed_are_refused(tmp_path: Path) -> None:
    assert put(tmp_path / "just", make_zip({f"files/{i}": b"" for i in range(MAX_FILES)})).exists()
    assert "at most 10,000" in refusal(tmp_path / "more", make_zip({f"files/{i}": b"" for i in range(MAX_FILES + 1)}))


def test_a_directory_of_a_million_members_is_not_even_parsed(tmp_path: Path) -> None:
    one = make_zip({"files/a": b""})
    entry = bytes(one[central(one) : one.index(END)])
    num = 1_000_000
    directory = entry * num
    content = one[: central(one)] + directory
    for announced in (1, MAX_FILES):
        end = struct.pack("<4s4H2LH", END, 0, 0, announced, announced, len(directory), central(one), 0)
        start = time.process_time()
        assert "directory of the zip" in refusal(tmp_path / str(announced), content + end)
        assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"before" + content,
        lambda content: content + b"after",
        lambda content: content[:-2] + struct.pack("<H", 5) + b"after",
        lambda content: content[:-22] + content[-22:].replace(struct.pack("<HH", 2, 2), struct.pack("<HH", 1, 1)),
        lambda content: content[:-22] + content[-22:].replace(struct.pack("<HH", 2, 2), struct.pack("<HH", 2, 1)),
        lambda content: content[:-22],
        lambda content: content[:21],
        lambda content: content[-22:],
        lambda content: bytes(len(content)),
        lambda content: b"MZ" * 100,
        lambda content: b"x",
    ],
)
def test_what_is_not_the_zip_that_it_should_be_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    content = bytes(make_zip({"code/0/a.py": b"a", "files/b": b"b" * 100}))
    assert "zip" in refusal(tmp_path, change(content))


def test_a_second_directory_is_not_even_looked_for(tmp_path: Path) -> None:
    """In the comment of the last member are the records that say, in a large zip, where the directory is."""
    content = make_zip({"files/a": b"", "files/b": b""})
    start, end = central(content), len(content) - 22
    records = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, end - start, start)
    records += struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    struct.pack_into("<H", content, central(content, 1) + COMMENT_SIZE, len(records))
    struct.pack_into("<L", content, end + END_DIRECTORY_SIZE, end - start + len(records))
    content[end:end] = records
    assert zipfile.ZipFile(io.BytesIO(content)).namelist() == ["files/a", "files/b"]
    assert "something else than it says" in refusal(tmp_path, content)


def test_content_that_does_not_match_its_checksum_is_refused(tmp_path: Path) -> None:
    content = make_zip({"files/a": b"first", "files/b": b"second"})
    content[content.index(b"second")] ^= 1
    assert "files/b" in refusal(tmp_path, content)


EXAMPLE = bytes(make_zip({"code/0/a.py": b"a" * 10, "code/0/ä/b.py": b"", "files/c": b"c" * 50}))


@given(st.lists(st.tuples(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@example([(EXAMPLE.index("ä".encode()), 0xFF)])
@settings(max_examples=400)
def test_any_byte_may_be_wrong(changes: list[tuple[int, int]]) -> None:
    """Either it is refused by us, or it is unpacked in its own folder; there is no third way."""
    content = bytearray(EXAMPLE)
    for position, value in changes:
        content[position] = value
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        try:
            where = put(folder, content)
        except ProtocolError:
            assert all_paths(folder) == {"store"}
        else:
            assert os.listdir(folder / "store") == [where.name]
            assert sum(path.stat().st_size for path in where.rglob("*") if path.is_file()) <= len(content)


@given(st.binary(max_size=300) | st.integers(0, len(EXAMPLE) - 1).map(lambda end: EXAMPLE[:end]))
@settings(max_examples=200)
def test_what_is_garbage_or_cut_off_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        refusal(Path(path), content or b"x")
