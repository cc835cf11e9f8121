"""Whole programs, however they are started and however they end: a process each, which leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from asyncparl.machine import escape_text, restore_text

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 60.0


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def run(
    *arguments: str, cwd: Path, stdin: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python, to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environ or {})},
        timeout=LIMIT_S,
        check=False,
    )


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


# --- how it is started --------------------------------------------------------------------------------------------

EVERYWHERE = """
    import trio, asyncparl

    counted = [0]

    class Point:
        def __init__(self, x): self.x = x

    class Refused(Exception):
        def __init__(self, what, *, why): super().__init__(f"{what}: {why}")

    def make(number):
        class Inner:
            pass

        @asyncparl.remote_class
        class Local:
            constant = number
            def numbers(self): return self.constant, number, super().__init__.__name__
            def inner(self, value=None): return Inner() if value is None else value
        return Local, Inner

    @asyncparl.remote_class
    class Outer:
        @asyncparl.remote_class
        class Nested:
            def answer(self): return 42
        def __init__(self, fails=False, **unexpected):
            if fails: raise Refused("start", why="asked to")
        def move(self, point): return Point(point.x + 1)
        def count(self):
            counted[0] += 1
            return counted[0]
        def fail(self): raise Refused("method", why="asked to")

    async def main():
        async with asyncparl.connect():
            outer = Outer()
            moved = await outer.move(Point(1))
            print(moved.x, type(moved) is Point)
            print(await outer.count(), await outer.count(), await Outer().count(), counted)
            locals = [make(number) for number in (1, 2)]
            print([await local().numbers() for local, _ in locals])
            for local, inner in locals:
                value = inner()
                print(type(await local().inner(value)) is inner)
            print(await Outer.__wrapped__.Nested().answer())
            await asyncparl.set_attribute(outer, "level", Point(3))
            print((await outer.level).x)
            for call in [outer.fail(), Outer(fails=True).count()]:
                try:
                    await call
                except Refused as error:
                    print(error)
            try:
                await Outer(unknown=1, fails=False, _wrong=2).count()
                await Outer(1, 2).count()
            except TypeError as error:
                print("takes" in str(error))

    if __name__ == "__main__":
        trio.run(main)
"""
EXPECTED = """\
2 True
1 2 1 [0]
[(1, 1, '__init__'), (2, 2, '__init__')]
True
True
42
3
method: asked to
start: asked to
True
"""

WAYS: dict[str, Callable[[Path], subprocess.CompletedProcess[str]]] = {
    "as a script": lambda folder: run("program.py", cwd=folder),
    "by a path from elsewhere": lambda folder: run(str(folder / "program.py"), cwd=folder / "elsewhere"),
    "as a module": lambda folder: run("-m", "program", cwd=folder),
    "as a package": lambda folder: run("-m", "package", cwd=folder),
    "as the main module of a folder": lambda folder: run("package", cwd=folder),
    "as text, like a notebook": lambda folder: run("-c", (folder / "program.py").read_text(), cwd=folder),
    "from standard input": lambda folder: run("-", cwd=folder, stdin=(folder / "program.py").read_text()),
    "by exec, like a cell": lambda folder: run("-c", "exec(open('program.py').read())", cwd=folder),
    "in isolated mode": lambda folder: run("-P", "-s", "program.py", cwd=folder),
    "optimized": lambda folder: run("-O", "program.py", cwd=folder),
    "with every warning an error": lambda folder: run("-X", "dev", "-W", "error", "program.py", cwd=folder),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_classes_work_and_keep_their_identity_however_a_program_is_started(way: str, tmp_path: Path) -> None:
    write(tmp_path, {"program.py": EVERYWHERE, "package/__main__.py": EVERYWHERE, "elsewhere/nothing": ""})
    done = WAYS[way](tmp_path)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("[Outer#")]  # failed constructors
    assert (done.returncode, done.stdout, errors) == (0, EXPECTED, [])


SIMPLE = """
    import trio, asyncparl
    import utils

    @asyncparl.remote_class
    class Worker:
        def value(self):
            import utils as again
            return utils.VALUE, again.VALUE

    async def main():
        async with asyncparl.connect(START_METHOD):
            print(await Worker().value())

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_files_of_the_working_folder_hide_no_modules(start_method: str, tmp_path: Path) -> None:
    names = ("random", "queue", "secrets", "types", "trio", "msgspec", "asyncparl", "utils", "numpy")
    program = SIMPLE.replace("START_METHOD", f"start_method={start_method!r}")
    write(tmp_path, {"project/program.py": program, "project/utils.py": "VALUE = 'right'"})
    write(tmp_path, {f"here/{name}.py": f"raise RuntimeError('the wrong {name}')" for name in names})
    done = run(str(tmp_path / "project" / "program.py"), cwd=tmp_path / "here")
    assert outcome(done) == (0, "('right', 'right')\n", "")


TEXTS = """
    import os, sys, trio, asyncparl

    def texts():
        main = sys.modules["__main__"]
        return sys.argv, [os.path.abspath(entry) for entry in sys.path], os.getcwd(), main.__file__

    @asyncparl.remote_class
    class Teller:
        def texts(self): return mine()
        async def of_another(self): return await Teller().texts()

    def mine():
        import far
        return *texts(), far.__name__

    async def main():
        async with asyncparl.connect(START_METHOD):
            teller = Teller()
            print(await teller.texts() == mine(), await teller.of_another() == mine())

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.parametrize("locale", [{}, {"PYTHONUTF8": "0", "LC_ALL": "C"}])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_what_the_system_says_may_be_any_bytes(start_method: str, locale: Mapping[str, str], tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xe9sum\xe9s and \xc3\xbc")
    name = os.fsdecode(b"a script \xe9.py")
    write(folder, {name: TEXTS.replace("START_METHOD", f"start_method={start_method!r}"), "lib\udce9/far.py": ""})
    environ = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(folder / "lib\udce9")]), **locale}
    done = run(name, os.fsdecode(b"r\xe9sum\xe9"), "z\xfcrich", "", cwd=folder, environ=environ)
    assert outcome(done) == (0, "True True\n", "")


@pytest.mark.parametrize("text", ["", "é/ü", "\udcff\udc80.py", "\ud83d", "\0", "\x10dce9", "\x10\x10", "a\x10\udce9"])
def test_such_a_text_travels_as_one_that_utf8_can_express(text: str) -> None:
    travelling = escape_text(text).encode()
    assert restore_text(travelling.decode()) == text


def test_the_folder_of_the_sockets_may_be_any_bytes(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xe9")
    write(folder, {"utils.py": "VALUE = 1", "program.py": SIMPLE.replace("START_METHOD", "")})
    assert outcome(run("program.py", cwd=folder, environ={"TMPDIR": str(folder)})) == (0, "(1, 1)\n", "")


def test_modules_of_a_program_may_have_the_names_of_others_that_are_installed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "program.py": SIMPLE.replace("START_METHOD", ""),
            "utils/__init__.py": "from utils.values import VALUE",
            "utils/values.py": "VALUE = 'mine'",
            "tests/__init__.py": "",
            "runtime.py": "",
            "worker.py": "",
            "protocol/__init__.py": "",
        },
    )
    assert outcome(run("program.py", cwd=tmp_path)) == (0, "('mine', 'mine')\n", "")


def test_a_module_that_cannot_be_imported_by_actors_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "program.py": """
                import trio, asyncparl
                from sims import Sim

                async def main():
                    async with asyncparl.connect():
                        try:
                            await Sim().step()
                        except asyncparl.SerializationError as error:
                            print(error)

                trio.run(main)
            """,
            "sims.py": """
                import os, asyncparl

                if os.environ.setdefault("FIRST", str(os.getpid())) != str(os.getpid()):
                    import a_module_that_is_missing

                @asyncparl.remote_class
                class Sim:
                    def step(self): pass
            """,
        },
    )
    done = run("program.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "No module named 'a_module_that_is_missing'" in done.stdout
    assert "sims.py" in done.stderr


@pytest.mark.slow
def test_a_class_whose_attributes_cannot_be_sent_is_found_by_its_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "program.py": """
                import threading, trio, asyncparl

                @asyncparl.remote_class
                class Agent:
                    lock = threading.RLock()
                    def locked(self):
                        with self.lock: return "locked"

                async def main():
                    async with asyncparl.connect():
                        try:
                            print(await Agent().locked())
                        except asyncparl.SerializationError as error:
                            print(error)

                if __name__ == "__main__":
                    trio.run(main)
            """
        },
    )
    assert outcome(run("program.py", cwd=tmp_path)) == (0, "locked\n", "")
    done = run("-c", (tmp_path / "program.py").read_text(), cwd=tmp_path)
    assert done.returncode == 0
    assert "cannot pickle '_thread.RLock' object" in done.stdout


# --- what it leaves as it was -------------------------------------------------------------------------------------


def test_importing_has_no_side_effects(tmp_path: Path) -> None:
    program = """
        import gc, multiprocessing, os, signal, socket, sys, threading, warnings

        def state():
            return {
                "environ": dict(os.environ),
                "signals": [signal.getsignal(number) for number in signal.valid_signals()],
                "threads": threading.enumerate(),
                "files": os.listdir("/proc/self/fd"),
                "start method": multiprocessing.get_start_method(allow_none=True),
                "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
                "streams": (sys.stdout, sys.stderr, sys.stdin),
                "path": list(sys.path),
                "timeout": socket.getdefaulttimeout(),
                "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
                "recursion": sys.getrecursionlimit(),
                "folder": os.getcwd(),
                "mask": os.umask(0o22),
                "main": sys.modules["__main__"],
            }

        before = state()
        import asyncparl
        after = state()
        print([name for name in before if before[name] != after[name]])
        print([name for name in ("numpy", "torch", "gymnasium", "pynng", "asyncio") if name in sys.modules])
    """
    done = run("-c", textwrap.dedent(program), cwd=tmp_path)
    assert outcome(done) == (0, "[]\n[]\n", "")


def test_the_environment_is_left_alone_and_proxy_settings_do_not_matter(tmp_path: Path) -> None:
    program = """
        import os, signal, trio, asyncparl

        @asyncparl.remote_class
        class Worker:
            def environ(self): return dict(os.environ)

        async def main():
            before = dict(os.environ), [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
            async with asyncparl.connect():
                environ = await Worker().environ()
            after = dict(os.environ), [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
            print(before == after, environ["http_proxy"], environ["MINE"])

        trio.run(main)
    """
    write(tmp_path, {"program.py": program})
    environ = {"http_proxy": "http://192.0.2.1:1", "HTTPS_PROXY": "http://192.0.2.1:1", "MINE": "x y"}
    assert outcome(run("program.py", cwd=tmp_path, environ=environ)) == (0, "True http://192.0.2.1:1 x y\n", "")


FORKING = """
    import multiprocessing, os, trio, asyncparl

    @asyncparl.remote_class
    class Worker:
        def echo(self, value): return value

    def use(queue, worker):
        call = worker.echo("from a fork")
        try:
            queue.put(str(call.result(10)))
        except Exception as error:
            queue.put(type(error).__name__)

    def connect(queue):
        async def main():
            async with asyncparl.connect():
                return await Worker().echo(os.getpid()), await Worker().echo(1)
        try:
            queue.put(trio.run(main)[1])
        except Exception as error:
            queue.put(repr(error))

    def run(function, *arguments):
        queue = context.Queue()
        process = context.Process(target=function, args=(queue, *arguments))
        process.start()
        value = queue.get(timeout=30)
        process.join(30)
        return value, process.exitcode

    context = multiprocessing.get_context("fork")
"""


def test_a_fork_of_a_program_cannot_use_its_actors_and_does_not_harm_it(tmp_path: Path) -> None:
    program = textwrap.dedent(FORKING) + textwrap.dedent("""
        async def main():
            async with asyncparl.connect():
                worker = Worker()
                await worker.echo(1)
                for _ in range(2):
                    value, exit_code = run(use, worker)
                    print(value, exit_code)
                    print(await worker.echo("here"))

        if __name__ == "__main__":
            trio.run(main)
    """)
    write(tmp_path, {"program.py": program})
    done = run("program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "NotConnectedError 0\nhere\n" * 2)


@pytest.mark.slow
def test_forks_connect_for_themselves_and_so_does_who_has_made_them(tmp_path: Path) -> None:
    program = textwrap.dedent(FORKING) + textwrap.dedent("""
        async def main():
            async with asyncparl.connect():
                print(await Worker().echo("parent"))

        if __name__ == "__main__":
            print(run(connect), run(connect))
            try:
                Worker()
            except asyncparl.NotConnectedError:
                print("not connected")
            trio.run(main)
            print(run(connect))  # too late: there are threads now, which a fork would lack
    """)
    write(tmp_path, {"program.py": program})
    done = run("program.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert lines == ["(1, 0) (1, 0)", "not connected", "parent"]
    assert "ResourceError('this process was forked from one that had channels" in last


# --- what is seen of its actors -----------------------------------------------------------------------------------


def test_what_goes_wrong_in_actors_is_seen_though_nobody_asks(tmp_path: Path) -> None:
    program = """
        import logging, sys, threading, trio, asyncparl

        @asyncparl.remote_class
        class Broken:
            def __init__(self): raise RuntimeError("no such device")

        @asyncparl.remote_class
        class Talking:
            def __init__(self): print("printed in __init__")
            def talk(self):
                logging.getLogger("mine").warning("logged")
                sys.stderr.write("written\\n")
                thread = threading.Thread(target=self.missing, name="helper")
                thread.start()
                thread.join()
            def missing(self): raise LookupError("raised in a thread")

        async def main():
            async with asyncparl.connect() as cluster:
                Broken()
                await Talking().talk()
                while cluster.num_actors > 1:
                    await trio.sleep(0.01)

        if __name__ == "__main__":
            trio.run(main)
    """
    write(tmp_path, {"program.py": program})
    done = run("program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[Talking#1] printed in __init__\n")
    for text in (
        "[Broken#1] RuntimeError: no such device",
        "[Talking#1] logged",
        "[Talking#1] written",
        "[Talking#1] LookupError: raised in a thread",
    ):
        assert text in done.stderr.splitlines()
