"""Classes, names and proxies as people write and use them: whatever Python allows works, or says why not."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import enum
import functools
import gc
import pydoc
import rlcompleter
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import pytest
import trio
import trio.lowlevel

import asyncparl
from asyncparl.protocol.messages import CallKind

T = TypeVar("T")

AWKWARD_NAMES = [
    *("call", "close", "kill", "state", "name", "loop", "identity", "reference", "public_names", "wait_created"),
    *("cancel", "done", "result", "aclose", "send", "throw", "options", "start", "run", "stop", "get", "set"),
    *("items", "keys", "values", "copy", "handle", "actor", "proxy", "expose", "gather", "connect", "target", "kind"),
    *("print", "type", "id", "exec", "match", "método", "größe", "x" * 1000),
]
AWKWARD_ARGUMENTS = {
    name: number
    for number, name in enumerate(
        ["args", "kwargs", "name", "kind", "target", "credit", "object_id", "timeout", "method", "cls", "value", "_x"]
    )
}


class Plain:
    limit = 3
    made: ClassVar[list[str]] = []

    def __init__(self, number: int) -> None:
        self.number = number

    def double(self) -> int:
        return 2 * self.number

    @classmethod
    def name_of_class(cls, text: str = "") -> str:
        return cls.__name__ + text

    @staticmethod
    def increment(number: int) -> int:
        return number + 1

    @property
    def tenfold(self) -> int:
        return 10 * self.number

    @tenfold.setter
    def tenfold(self, value: int) -> None:
        self.number = value // 10

    @property
    def read_only(self) -> int:
        return self.number

    @functools.cached_property
    def once(self) -> int:
        self.number += 1
        return self.number


@asyncparl.remote_class
class Child(Plain):
    def __init__(self, number: int, extra: int = 0) -> None:
        super().__init__(number)
        self.extra = extra

    def double(self) -> int:
        return super().double() + self.extra

    def method_of_super(self) -> int:
        return super(type(self), self).double()


class PlainGrandChild(Child):  # type: ignore[valid-type, misc]  # a remote class stands for its plain one
    def double(self) -> int:
        return int(super().double()) + 100


@asyncparl.remote_class
class GrandChild(PlainGrandChild):
    def double(self) -> int:
        return super().double() + 1000


class Named(enum.Enum):
    ONE = 1


class Pair(NamedTuple):
    first: int
    second: Any


@asyncparl.remote_class
@functools.total_ordering
@dataclasses.dataclass
class Record(Generic[T]):
    number: int
    parts: list[Any] = dataclasses.field(default_factory=list)

    def __lt__(self, other: Any) -> bool:
        return bool(self.number < other.number)

    def add(self, part: Any) -> list[Any]:
        self.parts.append(part)
        return self.parts

    def echo(self, value: Any) -> Any:
        return value

    def compare(self, number: int) -> bool:
        return self >= Record.__wrapped__(number)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def answer(self) -> int: ...


@asyncparl.remote_class
class Concrete(Abstract):
    __slots__ = ("given",)

    def __new__(cls, given: int) -> Self:
        self = super().__new__(cls)
        self.given = given + 1
        return self

    def answer(self) -> int:
        return self.given


@asyncparl.remote_class
class Forgotten(Abstract):
    """Its `answer` is missing."""


def wrapped(method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        return method(*args, **kwargs)

    return wrapper


def wrapped_async(method: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def wrapper(*args: Any, **kwargs: Any) -> T:
        return await method(*args, **kwargs)

    return wrapper


def return_name(name: str) -> Callable[[Any], str]:
    return lambda self: name


@asyncparl.remote_class(max_concurrency=4)
class Odd:
    """Names of every kind, some of which come from elsewhere than `def`."""

    class Inner:
        def __init__(self) -> None:
            self.value = 1

    def __init__(self) -> None:
        self.shadowed = 5  # type: ignore[method-assign, assignment]
        self.given = functools.partial(max, 3)
        self.internal_lock = 7
        self.list = [1, 2]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dynamic"):
            return f"the {name}"
        raise AttributeError(f"there is no {name}")

    def __len__(self) -> int:
        return 3

    def _private(self) -> str:
        return "private"

    def shadowed(self) -> int:
        return 1

    def keywords(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def add_method(self, name: str) -> None:
        setattr(type(self), name, return_name(name))

    def set_inside(self) -> None:
        self.set_later = 9

    anonymous = lambda self, number: number + 1  # noqa: E731

    @functools.lru_cache  # noqa: B019
    def cached(self, number: int) -> int:
        return number

    @wrapped
    def decorated(self) -> str:
        return "decorated"

    @wrapped_async
    async def decorated_async(self) -> str:
        await trio.lowlevel.checkpoint()
        return "decorated"

    @wrapped
    async def hidden_coroutine(self) -> None:
        """From outside, a method without `async`."""

    def thread(self) -> int:
        return threading.get_ident()

    async def async_thread(self) -> int:
        return threading.get_ident()

    def use_asyncio(self) -> str:
        async def main() -> str:
            await asyncio.sleep(0)
            return "asyncio"

        return asyncio.run(main())

    def use_trio(self) -> str:
        async def main() -> str:
            await trio.lowlevel.checkpoint()
            return "trio"

        return trio.run(main)


for awkward_name in AWKWARD_NAMES:
    setattr(Odd.__wrapped__, awkward_name, return_name(awkward_name))


@asyncparl.remote_class
class Watched:
    """Notes which of its names are used."""

    used: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        type(self).used.append(name)
        return object.__getattribute__(self, name)

    def names(self) -> list[str]:
        return [name for name in type(self).used if not name.startswith("__")]


async def test_a_subclass_has_everything_of_its_base() -> None:
    async with asyncparl.connect():
        child = Child(4, extra=1)
        assert await child.double() == 9
        assert await child.method_of_super() == 8
        assert await child.name_of_class("!") == "Child!"
        assert await child.increment(1) == 2
        assert await child.limit == 3


async def test_a_subclass_of_a_remote_class_is_a_plain_class_until_it_is_decorated() -> None:
    assert issubclass(PlainGrandChild, Plain)
    assert PlainGrandChild(4, 1).double() == 109
    async with asyncparl.connect():
        assert await GrandChild(4, 1).double() == 1109
        assert await GrandChild(4).name_of_class() == "GrandChild"


async def test_properties_are_read_and_set() -> None:
    async with asyncparl.connect():
        child = Child(4)
        assert await child.tenfold == 40
        await asyncparl.set_attribute(child, "tenfold", 50)
        assert await child.double() == 10
        assert [await child.once for _ in range(3)] == [6, 6, 6]
        with pytest.raises(AttributeError, match="read_only"):
            await asyncparl.set_attribute(child, "read_only", 1)
        with pytest.raises(TypeError, match="not callable"):
            await child.tenfold()


async def test_class_attributes_are_those_of_the_process() -> None:
    async with asyncparl.connect():
        first, second = Child(1), Child(2)
        await asyncparl.set_attribute(first, "limit", 7)
        assert (await first.limit, await second.limit) == (7, 3)
        assert Plain.limit == 3


async def test_dataclasses_generics_and_abstract_classes_are_classes_like_others() -> None:
    async with asyncparl.connect():
        record = Record(1)
        assert await record.add("x") == ["x"]
        assert await record.compare(1)
        assert await Concrete(1).answer() == 2
        with pytest.raises(TypeError, match="abstract"):
            await Forgotten().answer()


async def test_methods_may_have_any_name() -> None:
    async with asyncparl.connect():
        odd = Odd()
        calls = [getattr(odd, name)() for name in AWKWARD_NAMES]
        assert await asyncparl.gather(calls) == AWKWARD_NAMES


async def test_arguments_may_have_any_name() -> None:
    async with asyncparl.connect():
        assert await Odd().keywords(**AWKWARD_ARGUMENTS) == AWKWARD_ARGUMENTS


async def test_private_names_are_refused_here_and_over_there() -> None:
    async with asyncparl.connect():
        odd = Odd()
        for name in ("_private", "__dict__", "_handle_", "__wrapped__"):
            with pytest.raises(AttributeError, match="private"):
                getattr(odd, name)
        for name in ("_private", "__len__", "__dict__", "__class__", "__init__", "__reduce__"):
            for kind in (CallKind.METHOD, CallKind.GET_ATTRIBUTE):
                with pytest.raises(AttributeError, match="private"):
                    await odd._handle.call(kind, name)
            with pytest.raises(AttributeError, match="private"):
                await asyncparl.set_attribute(odd, name, 1)
        assert await odd.decorated() == "decorated"


async def test_what_a_proxy_cannot_do_is_an_error_here() -> None:
    uses: list[Callable[[Any], Any]] = [
        lambda odd: odd + 1,
        lambda odd: odd < odd,
        lambda odd: odd.thread + 1,
        lambda odd: setattr(odd, "x", 1),
        lambda odd: delattr(odd, "x"),
        float,
        lambda odd: isinstance(odd, Odd),  # type: ignore[arg-type]
        lambda odd: [*odd.thread],
    ]
    async with asyncparl.connect():
        odd = Odd()
        for use in uses:
            with pytest.raises((TypeError, AttributeError)):
                use(odd)
        assert await odd.decorated() == "decorated"


async def test_an_attribute_is_not_deleted_but_told_how_to_be() -> None:
    async with asyncparl.connect():
        odd: Any = Odd()
        with pytest.raises(AttributeError, match=r"a remote attribute cannot be deleted: .* 'list'"):
            del odd.list
        assert await odd.list == [1, 2]


async def test_what_is_of_another_process_is_not_exposed_again() -> None:
    async with asyncparl.connect():
        odd: Any = Odd()
        for thing, hint in ((odd, "pass it on as it is"), (odd.decorated(), "await it"), (odd.list, "await it")):
            with pytest.raises(TypeError, match=hint):
                asyncparl.expose(thing)


async def test_a_proxy_is_neither_awaited_nor_iterated_over() -> None:
    async with asyncparl.connect():
        odd: Any = Odd()
        with pytest.raises(TypeError):
            await odd
        with pytest.raises(TypeError):
            async for _ in odd:
                pass


async def test_callables_that_are_no_plain_methods_are_called_like_them() -> None:
    async with asyncparl.connect():
        odd = Odd()
        assert await odd.given(9) == 9
        assert await odd.anonymous(1) == 2
        assert [await odd.cached(3) for _ in range(2)] == [3, 3]
        assert await odd.decorated() == "decorated"
        assert await odd.decorated_async() == "decorated"
        assert (await odd.Inner()).value == 1
        await odd.add_method("added")
        assert await odd.added() == "added"


async def test_a_coroutine_that_nobody_awaits_is_an_error_of_its_call() -> None:
    async with asyncparl.connect():
        odd = Odd()
        with pytest.raises(asyncparl.SerializationError, match="coroutine"):
            await odd.hidden_coroutine()
        assert await odd.decorated() == "decorated"


async def test_an_attribute_hides_the_method_of_its_name() -> None:
    async with asyncparl.connect():
        odd = Odd()
        assert await odd.shadowed == 5
        with pytest.raises(TypeError, match="'int' object is not callable"):
            await odd.shadowed()
        with pytest.raises(TypeError, match="'list' object is not callable"):
            await odd.list()
        assert await odd.internal_lock == 7


async def test_names_that_appear_later_are_found() -> None:
    async with asyncparl.connect():
        odd = Odd()
        for name in ("set_later", "set_from_here"):
            with pytest.raises(AttributeError, match=f"there is no {name}"):
                await getattr(odd, name)
        await odd.set_inside()
        await asyncparl.set_attribute(odd, "set_from_here", 8)
        assert (await odd.set_later, await odd.set_from_here) == (9, 8)
        assert await odd.dynamic_name == "the dynamic_name"
        with pytest.raises(TypeError, match="'str' object is not callable"):
            await odd.dynamic_name()


async def test_an_async_method_changes_nothing_about_those_without() -> None:
    async with asyncparl.connect():
        odd = Odd()
        threads = await asyncparl.gather([odd.thread() for _ in range(20)])
        other = await odd.async_thread()
        threads += await asyncparl.gather([odd.thread() for _ in range(20)])
        assert len(set(threads)) == 1
        assert other not in threads


async def test_methods_may_run_event_loops_of_their_own() -> None:
    async with asyncparl.connect():
        odd = Odd()
        assert await asyncparl.gather([odd.use_asyncio(), odd.use_trio()]) == ["asyncio", "trio"]


async def test_looking_at_a_proxy_asks_the_actor_nothing() -> None:
    async with asyncparl.connect():
        watched = Watched()
        assert await watched.names() == ["names"]
        assert dir(watched) == ["names", "used"]
        assert "Watched#1" in repr(watched) and str(watched) == repr(watched) == f"{watched}"
        assert "asyncparl actor" in pydoc.render_doc(watched) or "Proxy" in pydoc.render_doc(watched)
        assert rlcompleter.Completer({"watched": watched}).complete("watched.na", 0) == "watched.names("
        assert hasattr(watched, "whatever") and callable(watched.whatever)
        assert not hasattr(watched, "_repr_html_") and not hasattr(watched, "__array__")
        assert "call it" in repr(watched.names)
        assert {watched: 1}[copy.copy(watched)] == 1
        assert copy.deepcopy([watched]) == [watched]
        assert weakref.ref(watched)() is watched
        assert await watched.names() == ["names", "names"]


def test_a_proxy_that_is_only_half_made_does_not_recurse() -> None:
    proxy = asyncparl.Proxy.__new__(asyncparl.Proxy)
    for use in (repr, dir, hash, copy.copy, lambda proxy: proxy.name, lambda proxy: proxy == proxy.other):
        with pytest.raises(AttributeError):
            use(proxy)


def test_a_remote_class_describes_the_plain_one() -> None:
    assert Child.__name__ == "Child" and Child.__module__ == __name__
    assert "Child" in repr(Child)
    assert Odd.__doc__ == "Names of every kind, some of which come from elsewhere than `def`."
    assert Child.__wrapped__.__mro__[1] is Plain


def test_the_plain_class_works_here_without_a_cluster() -> None:
    child = Child.__wrapped__(4, extra=1)
    assert (child.double(), child.tenfold, child.name_of_class()) == (9, 40, "Child")
    assert isinstance(child, Plain)
    assert copy.deepcopy(child).double() == 9
    odd = Odd.__wrapped__()
    assert len(odd) == 3 and odd._private() == "private"
    assert odd.use_asyncio() == "asyncio"


async def test_results_are_of_the_classes_that_are_known_here() -> None:
    async with asyncparl.connect():
        record = Record(1)
        child = await record.echo(Child.__wrapped__(4))
        assert type(child) is Child.__wrapped__ and isinstance(child, Plain)
        assert await record.echo(Named.ONE) is Named.ONE
        assert await record.echo(Pair) is Pair
        assert await record.echo(return_name) is return_name
        pair = await record.echo(Pair(1, Pair(2, [Named.ONE])))
        assert type(pair) is Pair and pair == Pair(1, Pair(2, [Named.ONE])) and pair.second.second[0] is Named.ONE
        assert type(await record.echo(LookupError("x"))) is LookupError
        inner = await record.echo(Odd.__wrapped__.Inner())
        assert type(inner) is Odd.__wrapped__.Inner


async def test_a_remote_class_is_an_argument() -> None:
    async with asyncparl.connect():
        again = await Record(1).echo(Child)
        assert again.__wrapped__ is Child.__wrapped__
        assert await again(4).double() == 8


async def test_a_proxy_that_nobody_keeps_lives_as_long_as_its_call() -> None:
    async with asyncparl.connect():
        call = Record(1).add("x")
        gc.collect()
        assert await call == ["x"]
        assert await Record(1).add("y") == ["y"]


async def test_proxies_and_calls_may_be_dropped_anywhere_and_at_any_moment(capfd: pytest.CaptureFixture[str]) -> None:
    class Cycle:
        def __init__(self, *held: Any) -> None:
            self.held: Any = [self, *held]

        def __del__(self) -> None:
            self.held[1].echo("called in __del__")

    async with asyncparl.connect():
        record = Record(1)
        for number in range(50):
            Cycle(record, Record(number) if number % 10 == 0 else record, record.echo(number))
            if number % 10 == 0:
                await trio.to_thread.run_sync(gc.collect)
        gc.collect()
        assert await record.echo("alive") == "alive"
    assert capfd.readouterr().err == ""
