"""What a node does with good packages: they arrive as they were packed, are found, and make room for others."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.runtime.code import MAX_PACKAGE_BYTES
from asyncparl.runtime.code.pack import Package, pack
from asyncparl.runtime.code.roots import Root
from asyncparl.runtime.code.store import LEFTOVER_AGE_S, CodeStore

NO_DIGEST = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "store")


def package_of(folder: Path, files: Mapping[str, bytes | str]) -> Package:
    """A package of a folder's code, and of what is in its `data`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    globs = ["data"] if (folder / "data").exists() else []
    return pack([Root(str(folder.resolve()), is_main=True)], globs, str(folder))


def put(store: CodeStore, package: Package, *, chunk_bytes: int = 1 << 16) -> Path:
    incoming = store.begin(package.digest, package.size)
    for start in range(0, package.size, chunk_bytes):
        incoming.write(memoryview(package.content)[start : start + chunk_bytes])
    return incoming.commit()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unfinished(tmp_path: Path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "store") if name.startswith(".")]


# --- there and back ---------------------------------------------------------------------------------------------

file_names = st.from_regex(r"[a-zäß_ ]{1,8}(\.txt|\.bin)?", fullmatch=True).filter(str.strip)
folders = st.lists(st.from_regex(r"[a-zé_]{1,6}", fullmatch=True), max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, bytes]:
    """Files that can be in one folder: no file is also a folder."""
    found: dict[str, bytes] = {}
    for _ in range(draw(st.integers(0, 6))):
        is_code = draw(st.booleans())
        name = draw(file_names) + "_.py" if is_code else "data/" + draw(file_names) + "."
        place = "".join(f"{part}/" for part in draw(folders))
        found[place.replace("data/", "d/") * is_code + name] = draw(st.binary(max_size=100))
    return found


@given(trees())
@settings(max_examples=50)
def test_what_is_packed_is_what_is_unpacked(tree: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "project").mkdir()
        package = package_of(folder / "project", tree)
        store = CodeStore(folder / "store")
        path = put(store, package, chunk_bytes=7 + len(tree))
        code = {name: content for name, content in tree.items() if name.endswith(".py")}
        data = {name: content for name, content in tree.items() if name.startswith("data/")}
        expected = {f"code/0/{name}": content for name, content in {**code, **data}.items()}
        expected |= {f"files/{name}": content for name, content in data.items()}
        assert contents(path) == expected
        assert {name: len(content) for name, content in expected.items()} == dict(package.files)


def test_a_program_runs_from_the_store(store: CodeStore, tmp_path: Path) -> None:
    """Modules are found in the order of the roots; their compiled code is kept for the next worker."""
    one = {"both.py": "WHERE = 'one'", "pkg/x.py": "from pathlib import Path\nFOLDER = Path(__file__).parent"}
    for name, files in {"one": one, "two": {"both.py": "WHERE = 'two'", "only.py": ""}}.items():
        package_of(tmp_path / name, files)
    package = pack([Root(str(tmp_path / name), is_main=True) for name in ("one", "two")])
    put(store, package)
    code = "import both, only, pkg.x; print(both.WHERE, pkg.x.FOLDER)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(store.roots(package.digest))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    output = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=environment).stdout
    assert output.decode().split() == ["one", f"{store.path(package.digest)}/code/0/pkg"]
    assert list(store.path(package.digest).glob("code/0/pkg/__pycache__/x.*.pyc"))


def test_roots_are_in_the_order_of_their_numbers(store: CodeStore, tmp_path: Path) -> None:
    package_of(tmp_path / "project", {"a.py": ""})
    (tmp_path / "empty").mkdir()
    full, empty = (Root(str(tmp_path / name), is_main=True) for name in ("project", "empty"))
    package = pack([full, empty] * 6)
    folder = put(store, package)
    assert store.roots(package.digest) == [str(folder / "code" / str(number)) for number in range(0, 12, 2)]


def test_files_are_for_their_owner_alone_and_cannot_be_written(store: CodeStore, tmp_path: Path) -> None:
    package_of(tmp_path / "project", {"main.py": "", "data/run.sh": "", "data/x": ""})
    (tmp_path / "project/data/run.sh").chmod(0o755)
    folder = put(store, package_of(tmp_path / "project", {}))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        if path.is_file():
            assert not path.stat().st_mode & 0o222
            assert bool(path.stat().st_mode & 0o100) == (path.name == "run.sh")


def test_each_job_has_copies_of_the_extra_files_that_it_may_write(store: CodeStore, tmp_path: Path) -> None:
    package_of(tmp_path / "project", {"data/run.sh": "#!/bin/sh", "data/deep/x": "text"})
    (tmp_path / "project/data/run.sh").chmod(0o755)
    package = package_of(tmp_path / "project", {})
    put(store, package)
    for job in ("job 1", "job 2"):
        store.link_files(package.digest, tmp_path / "jobs" / job)
        assert contents(tmp_path / "jobs" / job) == {"data/run.sh": b"#!/bin/sh", "data/deep/x": b"text"}
        assert stat.S_IMODE((tmp_path / "jobs" / job / "data/run.sh").stat().st_mode) == 0o755
        (tmp_path / "jobs" / job / "data/deep/x").write_text("changed")
    assert contents(store.files_folder(package.digest))["data/deep/x"] == b"text"


def test_a_package_without_extra_files_makes_an_empty_folder(store: CodeStore, tmp_path: Path) -> None:
    package = pack([])
    put(store, package)
    store.link_files(package.digest, tmp_path / "job")
    assert contents(tmp_path / "job") == {} and (tmp_path / "job").is_dir()
    assert store.roots(package.digest) == []


# --- having and not having --------------------------------------------------------------------------------------


def test_a_package_is_there_once_it_is_complete(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"main.py": "1"})
    incoming = store.begin(package.digest, package.size)
    incoming.write(package.content)
    assert not store.has(package.digest)
    folder = incoming.commit()
    assert store.has(package.digest)
    assert CodeStore(tmp_path / "store").path(package.digest) == folder
    assert unfinished(tmp_path) == []


def test_what_is_not_there_is_an_error_that_says_so(store: CodeStore, tmp_path: Path) -> None:
    assert not store.has(NO_DIGEST)
    for ask in (store.path, store.roots, store.files_folder):
        with pytest.raises(FileNotFoundError, match=f"no package {NO_DIGEST}"):
            ask(NO_DIGEST)
    with pytest.raises(FileNotFoundError, match=f"no package {NO_DIGEST}"):
        store.link_files(NO_DIGEST, tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    "digest", ["", "..", "../../etc", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n", "/" + "0" * 63]
)
def test_what_is_no_digest_is_refused(store: CodeStore, digest: str) -> None:
    for ask in (store.has, store.path, store.roots, lambda digest: store.begin(digest, 100)):
        with pytest.raises(ProtocolError, match="no digest"):
            ask(digest)


@pytest.mark.parametrize("size", [-1, 0, MAX_PACKAGE_BYTES + 1])
def test_a_size_that_no_package_has_is_refused_before_anything_is_sent(
    store: CodeStore, tmp_path: Path, size: int
) -> None:
    with pytest.raises(ProtocolError, match=f"a package of {size} bytes"):
        store.begin(NO_DIGEST, size)
    assert unfinished(tmp_path) == []


def test_commits_of_the_same_package_at_the_same_time_all_succeed(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {f"x{i}.py": "x" * i for i in range(50)})
    barrier = threading.Barrier(8)
    found: list[Path] = []

    def commit() -> None:
        incoming = CodeStore(tmp_path / "store").begin(package.digest, package.size)
        incoming.write(package.content)
        barrier.wait()
        found.append(incoming.commit())

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [store.path(package.digest)] * 8
    assert len(contents(found[0])) == 50
    assert unfinished(tmp_path) == []


# --- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_missing", [1, 30])
def test_a_package_that_ends_early_is_refused(store: CodeStore, tmp_path: Path, num_missing: int) -> None:
    package = package_of(tmp_path / "project", {"main.py": "1"})
    incoming = store.begin(package.digest, package.size)
    incoming.write(package.content[:-num_missing])
    with pytest.raises(ProtocolError, match=f"ended after {package.size - num_missing} of {package.size} bytes"):
        incoming.commit()
    assert unfinished(tmp_path) == [] and not store.has(package.digest)


def test_a_package_that_is_larger_than_announced_is_refused_at_once(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"main.py": "1"})
    incoming = store.begin(package.digest, package.size)
    incoming.write(package.content)
    with pytest.raises(ProtocolError, match=f"larger than the {package.size} bytes"):
        incoming.write(b"x")
    assert unfinished(tmp_path) == []


def test_content_that_is_not_what_the_digest_says_is_refused(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"main.py": "1"})
    incoming = store.begin(NO_DIGEST, package.size)
    incoming.write(package.content)
    with pytest.raises(ProtocolError, match="something else than its name says"):
        incoming.commit()
    assert unfinished(tmp_path) == [] and not store.has(NO_DIGEST) and not store.has(package.digest)


def test_an_upload_that_is_aborted_leaves_nothing(store: CodeStore, tmp_path: Path) -> None:
    incoming = store.begin(NO_DIGEST, 100)
    incoming.write(b"x" * 50)
    assert len(unfinished(tmp_path)) == 1
    incoming.abort()
    incoming.abort()
    assert unfinished(tmp_path) == []


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond that: a write fails, as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_when_there_is_no_room_for_the_upload_nothing_is_left(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"data/large": bytes(100_000)})
    incoming = store.begin(package.digest, package.size)
    with (
        files_of_at_most(50_000),
        pytest.raises(OSError, match=r"cannot be stored in .*store: File too large") as caught,
    ):
        for start in range(0, package.size, 10_000):
            incoming.write(package.content[start : start + 10_000])
    assert caught.value.errno == errno.EFBIG
    assert unfinished(tmp_path) == []


def test_when_there_is_no_room_to_unpack_nothing_is_left(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"data/large": bytes(100_000), "a.py": ""})
    incoming = store.begin(package.digest, package.size)
    incoming.write(package.content)
    with files_of_at_most(50_000), pytest.raises(OSError, match=r"cannot be stored in .*store: File too large"):
        incoming.commit()
    assert os.listdir(tmp_path / "store") == []
    assert put(store, package) == store.path(package.digest)


def test_when_there_is_no_room_for_copies_the_error_says_where(store: CodeStore, tmp_path: Path) -> None:
    package = package_of(tmp_path / "project", {"data/large": bytes(100_000)})
    put(store, package)
    with files_of_at_most(50_000), pytest.raises(OSError, match=r"cannot be copied to .*job: File too large"):
        store.link_files(package.digest, tmp_path / "job")


def test_a_folder_that_others_can_write_to_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o770)
    with pytest.raises(PermissionError, match=f"chmod 700 {tmp_path}/store"):
        CodeStore(tmp_path / "store")


# --- making room ------------------------------------------------------------------------------------------------


@pytest.fixture
def three(store: CodeStore, tmp_path: Path) -> list[str]:
    """Digests of three packages of 1,000 bytes each, the least recently used first."""
    packages = [package_of(tmp_path / name, {"main.py": name * 1000}) for name in "abc"]
    for age_s, package in zip((300, 200, 100), packages, strict=True):
        os.utime(put(store, package), (time.time() - age_s,) * 2)
    return [package.digest for package in packages]


def there(store: CodeStore, tmp_path: Path, digests: list[str]) -> list[bool]:
    names = os.listdir(tmp_path / "store")
    return [digest in names for digest in digests]


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [
        (3000, [True, True, True]),
        (2999, [False, True, True]),
        (2000, [False, True, True]),
        (1000, [False, False, True]),
        (0, [False, False, False]),
    ],
)
def test_the_least_recently_used_are_removed_first(
    store: CodeStore, tmp_path: Path, three: list[str], max_bytes: int, expected: list[bool]
) -> None:
    removed = store.trim(max_bytes)
    assert there(store, tmp_path, three) == expected
    assert removed == [digest for digest, is_there in zip(three, expected, strict=True) if not is_there]
    assert unfinished(tmp_path) == []


def test_what_is_in_use_is_kept(store: CodeStore, tmp_path: Path, three: list[str]) -> None:
    assert store.trim(1000, {three[0]}) == three[1:]
    assert there(store, tmp_path, three) == [True, False, False]
    assert store.trim(0, {three[0]}) == []


@pytest.mark.parametrize("use", ["has", "path", "roots", "files_folder", "put"])
def test_every_use_counts(store: CodeStore, tmp_path: Path, three: list[str], use: str) -> None:
    if use == "put":
        put(store, package_of(tmp_path / "a", {}))
    else:
        getattr(store, use)(three[0])
    assert store.trim(2000) == [three[1]]


def test_what_killed_processes_left_is_removed_when_a_store_is_opened(
    store: CodeStore, tmp_path: Path, three: list[str]
) -> None:
    old, new = time.time() - LEFTOVER_AGE_S - 10, time.time() - LEFTOVER_AGE_S + 600
    for name, when in {"old": old, "new": new}.items():
        for kind in (".upload", ".unpack", ".trash"):
            path = tmp_path / "store" / f"{kind}-{name}"
            if kind == ".upload":
                path.write_text("half")
            else:
                (path / "code/0").mkdir(parents=True)
                (path / "code/0/x.py").write_text("")
            os.utime(path, (when, when))
    os.utime(tmp_path / "store" / three[0], (old, old))
    CodeStore(tmp_path / "store")
    assert sorted(unfinished(tmp_path)) == [".trash-new", ".unpack-new", ".upload-new"]
    assert there(store, tmp_path, three) == [True, True, True]
