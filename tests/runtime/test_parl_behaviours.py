"""What the tests of PARL check of its remote classes, on one machine, as far as no other test here does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import asyncparl
from asyncparl.protocol.cluster_view import NodeSummary

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 30.0

GLOBAL_CLIENT = "a global"


class Sample:
    """What a simulator returns."""

    def __init__(self, obs: np.ndarray, name: str) -> None:
        self.obs = obs
        self.name = name


@asyncparl.remote_class
class Actor:
    def __init__(self, level: float = 0, *, rate: float = 0.1) -> None:
        self.level = level
        self.rate = rate
        self.obs = np.arange(3)
        self.GLOBAL_CLIENT = None
        if level < 0:
            raise ValueError("the level is negative")

    def add(self, n: float) -> float:
        self.level += n
        return self.level

    def fail(self) -> None:
        raise LookupError("in the method")

    def leave(self) -> None:
        sys.exit(1)

    def sample(self, size: int) -> dict[str, list[Sample]]:
        return {"samples": [Sample(np.full((size, size), i, np.float32), f"sample {i}") for i in range(3)]}

    def use_global(self) -> str:
        return GLOBAL_CLIENT

    def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def interpreter(self) -> tuple[str, str]:
        return sys.executable, sys.version


async def node_of(cluster: asyncparl.Cluster) -> NodeSummary:
    (node,) = (await cluster.describe()).nodes
    return node


async def wait_for_used_cpus(cluster: asyncparl.Cluster, expected: float) -> None:
    with trio.fail_after(LIMIT_S):
        while (await node_of(cluster)).used_cpus != expected:
            await trio.sleep(0.01)


async def test_an_actor_takes_its_cpus_when_it_is_made_and_gives_them_back_when_it_ends() -> None:
    async with asyncparl.connect(cpus=2) as cluster:
        assert (await node_of(cluster)).total_cpus == 2
        assert (await node_of(cluster)).used_cpus == 0
        first, second = Actor(), Actor.options(num_cpus=0.5)()
        await asyncparl.gather([first.add(1), second.add(1)])
        node = await node_of(cluster)
        assert (node.used_cpus, node.num_actors) == (1.5, 2)
        await asyncparl.close(first)
        await wait_for_used_cpus(cluster, 0.5)
        await asyncparl.kill(second)
        await wait_for_used_cpus(cluster, 0)


@pytest.mark.parametrize("wrong", [{"unknown": 1}, {"level": -1}])
async def test_the_cpu_of_an_actor_whose_constructor_fails_is_free_for_the_next(wrong: dict[str, Any]) -> None:
    async with asyncparl.connect(cpus=1):
        with trio.fail_after(LIMIT_S):
            broken = Actor(**wrong)
            with pytest.raises((TypeError, ValueError), match=r"unexpected keyword argument 'unknown'|is negative"):
                await broken.add(1)
            assert await Actor().add(1) == 1


async def test_the_cpu_of_an_actor_that_exits_is_free_for_the_next_and_its_calls_fail_for_ever() -> None:
    async with asyncparl.connect(cpus=1):
        with trio.fail_after(LIMIT_S):
            actor = Actor()
            calls = [actor.leave(), actor.add(1)]
            for call in calls:
                with pytest.raises(asyncparl.ActorDied, match="exited with code 1"):
                    await call
            other = Actor()
            assert await other.add(1) == 1
            for call in (actor.add(1), actor.level):
                with pytest.raises(asyncparl.ActorDied, match="never started"):
                    await call
            with pytest.raises(asyncparl.ActorDied):
                await asyncparl.set_attribute(actor, "level", 1)
            assert await other.add(1) == 2


async def test_an_exception_in_a_method_costs_nothing() -> None:
    async with asyncparl.connect(cpus=1):
        with trio.fail_after(LIMIT_S):
            actor = Actor()
            for n in range(3):
                with pytest.raises(LookupError, match="in the method"):
                    await actor.fail()
                await asyncparl.set_attribute(actor, "level", 10 * n)
                assert await actor.level == 10 * n
                assert await actor.add(1) == 10 * n + 1


async def test_actors_come_and_go_on_the_same_cpus() -> None:
    async with asyncparl.connect(cpus=4) as cluster:
        with trio.fail_after(LIMIT_S):
            for _ in range(10):
                actor = Actor()
                assert await actor.add(1) == 1
                await asyncparl.close(actor)
            actors = [Actor(n) for n in range(4)]
            assert await asyncparl.gather([actor.add(1) for actor in actors]) == [1, 2, 3, 4]
            late = Actor()
            call = late.add(1)
            await wait_for_used_cpus(cluster, 4)
            assert not call.done()
            await asyncparl.close(actors[2])
            assert await call == 1


async def test_attributes_of_every_kind_are_read_and_set() -> None:
    async with asyncparl.connect():
        actor = Actor(3, rate=0.5)
        assert (await actor.level, await actor.rate, await actor.GLOBAL_CLIENT) == (3, 0.5, None)
        for name, value in [("level", 7), ("rate", 0.25), ("GLOBAL_CLIENT", "set"), ("new", {"a": [1]})]:
            await asyncparl.set_attribute(actor, name, value)
            assert await getattr(actor, name) == value
        obs = await actor.obs
        assert np.array_equal(obs, [0, 1, 2])
        await asyncparl.set_attribute(actor, "obs", obs + 1)
        assert np.array_equal(await actor.obs, [1, 2, 3])
        assert await actor.add(1) == 8
        assert await actor.use_global() == "a global"


async def test_results_of_classes_of_the_program_arrive_whole() -> None:
    async with asyncparl.connect():
        result = await Actor().sample(50)
        assert [type(sample) for sample in result["samples"]] == [Sample] * 3
        assert [sample.name for sample in result["samples"]] == ["sample 0", "sample 1", "sample 2"]
        assert [float(sample.obs.sum()) for sample in result["samples"]] == [0, 2500, 5000]


async def test_calls_that_nobody_has_awaited_yet_run_at_the_same_time_on_all_actors() -> None:
    async with asyncparl.connect():
        actors = [Actor() for _ in range(3)]
        calls = [actor.add(n) for actor in actors for n in (1, 2)]
        failing = actors[1].fail()
        assert [await call for call in reversed(calls)] == [3, 1] * 3
        assert [await call for call in calls] == [1, 3] * 3
        for _ in range(2):
            with pytest.raises(LookupError):
                await failing
        assert failing.done()


@pytest.mark.slow
async def test_gpus_are_given_to_one_actor_each_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    async with asyncparl.connect() as cluster:
        with trio.fail_after(LIMIT_S):
            remote = Actor.options(num_gpus=1)
            with pytest.raises(ValueError, match="negative"):
                await remote(-1).add(1)
            first, second = remote(), remote()
            assert sorted(await asyncparl.gather([first.gpus(), second.gpus()])) == ["0", "1"]
            assert (await node_of(cluster)).used_gpus == [1, 1]
            third = remote().gpus()
            with pytest.raises(LookupError):
                await first.fail()
            freed = await first.gpus()
            assert not third.done()
            await asyncparl.close(first)
            assert await third == freed
            assert await Actor().gpus() == ""
            with pytest.raises(asyncparl.ResourceError, match="needs 3 GPUs"):
                await Actor.options(num_gpus=3)().add(1)


async def test_actors_run_the_interpreter_of_their_program() -> None:
    async with asyncparl.connect():
        assert await Actor().interpreter() == (sys.executable, sys.version)


def test_only_classes_are_decorated_and_only_with_options_that_exist() -> None:
    with pytest.raises(TypeError, match="decorates classes, not <function"):
        asyncparl.remote_class(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"decorates classes, not <asyncparl\.remote_class"):
        asyncparl.remote_class(Actor)
    with pytest.raises(TypeError, match="decorates classes, not 3"):
        asyncparl.remote_class(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unknown option 'wait'; a remote class takes num_cpus, "):
        asyncparl.remote_class(wait=False)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unknown option 'max_memroy'"):
        Actor.options(max_memroy=350)
    for options in ({"num_cpus": -1}, {"num_gpus": -0.5}, {"max_concurrency": 0}, {"placement": "random"}):
        with pytest.raises(ValueError, match=next(iter(options)).removeprefix("num_")):
            Actor.options(**options)


# --- programs ------------------------------------------------------------------------------------------------------


def run(folder: Path, files: dict[str, str], script: str, cwd: str = ".") -> str:
    """What a program prints, which must end well."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (folder / cwd).mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(folder / script)],
        capture_output=True,
        text=True,
        cwd=folder / cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SIBLING = """
    import asyncparl
    OFFSET = 10

    @asyncparl.remote_class
    class Sim:
        def step(self, n): return n + OFFSET
"""
MAIN = """
    import trio, asyncparl
    IMPORTS

    async def main():
        async with asyncparl.connect():
            print(await asyncparl.gather([cls().step(1) for cls in CLASSES]))

    if __name__ == "__main__":
        trio.run(main)
"""


def main_program(imports: str, classes: str) -> str:
    return textwrap.dedent(MAIN).replace("IMPORTS", textwrap.dedent(imports)).replace("CLASSES", classes)


def test_classes_of_modules_beside_and_below_the_script_are_found_from_wherever_it_is_started(tmp_path: Path) -> None:
    files = {
        "project/main.py": main_program(
            "import sibling, envs.atari.sim\nfrom envs import sim as other\nfrom envs.atari.relative import Relative",
            "[sibling.Sim, envs.atari.sim.Sim, other.Sim, Relative]",
        ),
        "project/sibling.py": SIBLING,
        "project/envs/__init__.py": "",
        "project/envs/sim.py": SIBLING.replace("10", "20"),
        "project/envs/atari/__init__.py": "",
        "project/envs/atari/sim.py": SIBLING.replace("10", "30"),
        "project/envs/atari/relative.py": """
            from . import sim
            from ..sim import OFFSET
            import asyncparl

            @asyncparl.remote_class
            class Relative(sim.Sim):
                def step(self, n): return super().step(n) + OFFSET
        """,
    }
    assert run(tmp_path, files, "project/main.py", cwd="elsewhere") == "[11, 31, 21, 51]\n"


def test_classes_in_a_folder_that_the_program_has_added_to_its_path_are_found(tmp_path: Path) -> None:
    files = {
        "main.py": main_program(
            f"import sys\nsys.path.append({str(tmp_path / 'far away')!r})\nsys.path.append('lib')\nimport far, near",
            "[far.Sim, near.Sim]",
        ),
        "far away/far.py": SIBLING,
        "here/lib/near.py": SIBLING.replace("10", "20"),
    }
    assert run(tmp_path, files, "main.py", cwd="here") == "[11, 21]\n"


def test_ten_threads_make_actors_of_such_a_class_at_once(tmp_path: Path) -> None:
    files = {
        "main.py": f"""
            import sys, threading
            import asyncparl.blocking as asyncparl

            def work(number):
                from far import Sim
                results[number] = Sim().step(number).result(30)

            results = {{}}
            if __name__ == "__main__":
                sys.path.append({str(tmp_path / "far")!r})
                with asyncparl.connect():
                    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                print([results[number] for number in range(10)])
        """,
        "far/far.py": SIBLING,
    }
    assert run(tmp_path, files, "main.py") == f"{list(range(10, 20))}\n"


def test_an_actor_may_be_made_before_the_main_guard(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import asyncparl.blocking as asyncparl

            table = {"a": 1}

            @asyncparl.remote_class
            class Sim:
                def __init__(self): self.table = table
                def get(self, key): return self.table[key]
                def put(self, key, value): table[key] = value

            cluster = asyncparl.connect()
            sim = Sim()

            if __name__ == "__main__":
                sim.put("b", 2).result()
                print(sim.get("a").result(), sim.get("b").result(), table)
                cluster.close()
        """
    }
    assert run(tmp_path, files, "main.py") == "1 2 {'a': 1}\n"


def test_a_script_may_connect_before_it_defines_its_classes(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import asyncparl.blocking as asyncparl
            cluster = asyncparl.connect()

            @asyncparl.remote_class
            class Sim:
                def step(self): return 1

            print(Sim().step().result())
            cluster.close()
        """
    }
    assert run(tmp_path, files, "main.py") == "1\n"


def test_what_a_script_defines_after_connect_works_together_with_what_it_defines_before(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import asyncparl.blocking as asyncparl, dataclasses

            class Base:
                def twice(self): return 2 * self.step()

            class Early:
                def __init__(self, function): self.function = function

            def early(x): return x + 1

            cluster = asyncparl.connect()
            table = {"a": 1}

            def late(x): return early(x) + table["a"]

            @dataclasses.dataclass
            class Config:
                n: int

            class LateError(Exception): pass

            @asyncparl.remote_class
            class Sim(Base):
                def step(self): return late(1)
                def next(self, config): return isinstance(config, Config), Config(config.n + 1)
                def fail(self): raise LateError("in the actor")
                def is_early(self, thing): return type(thing) is Early, isinstance(self, Base), thing
                def of_another(self): return Sim().step().result()

            sim = Sim()
            print(sim.step().result(), sim.twice().result(), sim.of_another().result())
            known, config = sim.next(Config(1)).result()
            print(known, config, type(config) is Config)
            try:
                sim.fail().result()
            except LateError as error:
                print(error)
            *known, thing = sim.is_early(Early(lambda x: x)).result()
            print(known, type(thing) is Early)
            cluster.close()
        """
    }
    assert run(tmp_path, files, "main.py").splitlines() == [
        "3 6 3",
        "True Config(n=2) True",
        "in the actor",
        "[True, True] True",
    ]


def test_a_class_after_connect_that_cannot_travel_is_one_clear_error(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import asyncparl.blocking as asyncparl
            cluster = asyncparl.connect()

            @asyncparl.remote_class
            class Sim:
                def count(self): return cluster.num_actors

            try:
                Sim().count().result()
            except asyncparl.SerializationError as error:
                print(error)
            cluster.close()
        """
    }
    text = run(tmp_path, files, "main.py")
    assert text.startswith(
        "the class Sim of Sim#1.__init__: a value of type type cannot be pickled: TypeError: <asyncparl"
    )
    assert "it cannot be sent. It is defined after `connect()`" in text and text.endswith("define it before\n")


def test_a_class_that_only_the_program_itself_defines_is_one_clear_error(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import trio, asyncparl

            @asyncparl.remote_class
            class Sim:
                def step(self, box): return 1

            async def main():
                async with asyncparl.connect():
                    try:
                        await Sim().step(Box())
                    except asyncparl.SerializationError as error:
                        print(error)

            if __name__ == "__main__":
                class Box: pass
                trio.run(main)
        """
    }
    text = run(tmp_path, files, "main.py")
    assert "the arguments of step: " in text and "Can't get attribute 'Box'" in text
    assert "main.py as actors import it: up to its connect(), and without what is under `if __name__" in text


def test_files_that_a_program_writes_after_it_has_connected_are_read_by_its_actors(tmp_path: Path) -> None:
    files = {
        "main.py": """
            import pathlib, numpy as np, trio, asyncparl

            @asyncparl.remote_class
            class Reader:
                def read(self): return pathlib.Path("data/config.json").read_text(), np.load("data/array.npy").sum()

            async def main():
                async with asyncparl.connect():
                    pathlib.Path("data").mkdir()
                    pathlib.Path("data/config.json").write_text('{"rate": 1}')
                    np.save("data/array.npy", np.ones(5))
                    print(*await Reader().read())

            if __name__ == "__main__":
                trio.run(main)
        """
    }
    assert run(tmp_path, files, "main.py") == '{"rate": 1} 5.0\n'
