"""A plugin that tells mypy what `@remote_class` does; mypy itself does not look at what a class decorator returns.

In the configuration of mypy: `plugins = asyncparl.mypy_plugin`. Making an instance of a decorated class is then a
`Proxy`, while inside the class `self` is the plain class. pyright needs nothing of the kind. Only mypy imports this
module.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_STAR, ARG_STAR2, Argument, TypeInfo, Var
from mypy.plugin import ClassDefContext, FunctionContext, Plugin
from mypy.plugins.common import add_attribute_to_class, add_method_to_class
from mypy.types import AnyType, CallableType, Instance, Type, TypeOfAny, TypeType

_DECORATOR = "asyncparl.runtime.remote_class.remote_class"
_PROXY = "asyncparl.runtime.remote.Proxy"
_MARK = "asyncparl"


class AsyncparlPlugin(Plugin):
    """See the top of this file."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _mark if fullname == _DECORATOR else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        found = self.lookup_fully_qualified(fullname)
        is_marked = found is not None and isinstance(found.node, TypeInfo) and _MARK in found.node.metadata
        return self._proxy if is_marked else None

    def _proxy(self, ctx: FunctionContext) -> Type:
        found = self.lookup_fully_qualified(_PROXY)
        if found is None or not isinstance(found.node, TypeInfo):
            return ctx.default_return_type
        return Instance(found.node, [])


def _mark(ctx: ClassDefContext) -> bool:
    """Remember the decorated class, and give it what `RemoteClass` adds: `options` and `__wrapped__`."""
    proxy = ctx.api.named_type_or_none(_PROXY)
    if proxy is None:
        return False  # not analysed yet: mypy comes back
    info = ctx.cls.info
    info.metadata[_MARK] = {}
    anything = AnyType(TypeOfAny.explicit)
    options = Argument(Var("options", anything), anything, None, ARG_STAR2)
    make_proxy = CallableType(
        [anything, anything], [ARG_STAR, ARG_STAR2], [None, None], proxy, ctx.api.named_type("builtins.function")
    )
    add_method_to_class(ctx.api, ctx.cls, "options", [options], make_proxy, is_staticmethod=True)
    add_attribute_to_class(ctx.api, ctx.cls, "__wrapped__", TypeType(Instance(info, [])), is_classvar=True)
    return True


def plugin(_version: str) -> type[Plugin]:
    """What mypy asks for."""
    return AsyncparlPlugin
