"""What `@remote_class` makes of a class: what it is called, what can be read of it, how its arguments may be named."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import asyncparl
from tests.runtime.actors import Echo

OUR_NAMES = [
    "self",
    "cls",
    "args",
    "kwargs",
    "options",
    "supervisor",
    "actor",
    "method",
    "name",
    "timeout",
    "timeout_s",
]
ARGUMENTS = {name: number for number, name in enumerate(OUR_NAMES)}


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number

    def double(self) -> int:
        return 2 * self.number


OtherName = asyncparl.remote_class(Plain)

T = TypeVar("T")


@asyncparl.remote_class
class Holder(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    def __class_getitem__(cls, parameters: Any) -> Any:
        return "what the class makes of it" if parameters == "none" else super().__class_getitem__(parameters)


class HolderOfInt(Holder[int]):
    pass


class Rebound(Plain):
    def itself(self) -> Plain:
        return self


Rebound = asyncparl.remote_class(Rebound)  # type: ignore[misc, assignment]


@asyncparl.remote_class
class Decorated(Plain):
    """Registered by its base, say: it is reached without its decorated name."""


@asyncparl.remote_class
class Keywords:
    def __init__(self, /, **given: Any) -> None:
        self.given = given

    def __call__(self, /, **given: Any) -> dict[str, Any]:
        return given

    def method(self, /, **given: Any) -> dict[str, Any]:
        return given

    async def async_method(self, /, **given: Any) -> dict[str, Any]:
        return given


@asyncparl.remote_class
class Constant:
    LIMIT = 3
    names: ClassVar[list[str]] = ["x"]
    reward = math.sqrt
    _hidden = 1

    @dataclasses.dataclass
    class Settings:
        rate: float = 0.5

    def step(self) -> int:
        return self.LIMIT

    @classmethod
    def make(cls) -> Constant:
        return cls()

    @staticmethod
    def add(number: int) -> int:
        return number + 1

    @property
    def size(self) -> int:
        return 1


# --- its name ---------------------------------------------------------------------------------------------------


async def test_a_class_that_is_made_remote_under_another_name_stays_what_it_was() -> None:
    plain = pickle.loads(pickle.dumps(Plain(4)))
    assert type(plain) is Plain
    async with asyncparl.connect():
        assert await OtherName(4).double() == 8
        assert type(await Echo().echo(plain)) is Plain
    assert Plain.__qualname__ == "Plain"


async def test_a_class_may_be_made_remote_under_its_own_name_by_a_call() -> None:
    plain = Rebound.__wrapped__(4)
    assert type(pickle.loads(pickle.dumps(plain))) is Rebound.__wrapped__
    async with asyncparl.connect():
        for rebound in (Rebound(4), Rebound.options(num_cpus=2)(4)):
            assert await rebound.double() == 8
            again = await rebound.itself()
            assert type(again) is Rebound.__wrapped__ and again.number == 4
        assert (await Echo().echo(Rebound)).__wrapped__ is Rebound.__wrapped__


def test_instances_of_the_plain_class_are_pickled_however_the_class_was_reached() -> None:
    plain = Plain.__subclasses__()[1]
    assert type(pickle.loads(pickle.dumps(plain(4)))) is plain is Decorated.__wrapped__


def test_a_class_that_nobody_can_import_is_not_renamed() -> None:
    class Local:
        pass

    name = Local.__qualname__
    asyncparl.remote_class(Local)
    assert Local.__qualname__ == name


# --- what it has ------------------------------------------------------------------------------------------------


def test_what_a_class_has_for_itself_is_read_at_the_remote_class() -> None:
    assert Constant.LIMIT == 3
    assert Constant.names is Constant.__wrapped__.names
    assert Constant.reward(4) == 2
    assert Constant.Settings().rate == 0.5
    assert Constant.options(num_cpus=2).LIMIT == 3  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Constant' has no attribute 'missing'"):
        _ = Constant.missing  # type: ignore[attr-defined]


def test_what_belongs_to_its_instances_is_refused_there_and_said_to_be_of_actors() -> None:
    for name in ("step", "make", "add", "size"):
        text = rf"Constant\.{name} belongs to actors: .* Constant\.__wrapped__\.{name}"
        with pytest.raises(AttributeError, match=text):
            getattr(Constant, name)
    with pytest.raises(AttributeError, match="'_hidden' is private"):
        _ = Constant._hidden
    with pytest.raises(AttributeError, match=r"Constant\.LIMIT cannot be set: .*set_attribute"):
        Constant.LIMIT = 4
    assert (Constant.LIMIT, Constant.__wrapped__.LIMIT) == (3, 3)


# --- the names of arguments -------------------------------------------------------------------------------------


async def test_a_generic_class_may_be_made_with_its_parameters() -> None:
    async with asyncparl.connect():
        held = [Holder(1), Holder[int](2), Holder[dict[str, int]].options(num_cpus=0)(3), Holder.options()[int](4)]
        assert [await each.value for each in held] == [1, 2, 3, 4]
    assert issubclass(HolderOfInt, Holder.__wrapped__)
    assert Holder["none"] == "what the class makes of it"  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"^type 'Plain' is not subscriptable$"):
        OtherName[int]
    with pytest.raises(TypeError, match=r"^'RemoteClass' object is not iterable$"):
        list(Holder)  # type: ignore[call-overload]


async def test_an_argument_may_be_named_as_ours_are() -> None:
    async with asyncparl.connect() as cluster, asyncparl.supervise() as group:
        keywords = Keywords(**ARGUMENTS)
        assert await keywords.given == ARGUMENTS
        assert await keywords(**ARGUMENTS) == ARGUMENTS
        assert await keywords.method(**ARGUMENTS) == ARGUMENTS
        assert await keywords.async_method(**ARGUMENTS) == ARGUMENTS
        assert await group.add(Keywords, **ARGUMENTS).given == ARGUMENTS
        cluster.report(**ARGUMENTS)
        with pytest.raises(TypeError, match="unknown option 'self'"):
            Keywords.options(self=1)
