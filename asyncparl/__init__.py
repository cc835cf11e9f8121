"""asyncparl: distributed reinforcement learning as plain async Python.

    @asyncparl.remote_class         turns a class into actors, each in a process of its own
    async with asyncparl.connect()  starts a cluster on this machine
    await actor.method(...)         calls it

`asyncparl.blocking` is the same without `async`.

Importing this starts nothing and imports neither numpy, torch nor gymnasium. `Model`, `Algorithm` and `Agent` need
torch, which is imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from asyncparl._version import __version__ as __version__
from asyncparl.errors import ActorDied as ActorDied
from asyncparl.errors import AsyncparlError as AsyncparlError
from asyncparl.errors import AuthenticationError as AuthenticationError
from asyncparl.errors import CallCancelled as CallCancelled
from asyncparl.errors import CallFate as CallFate
from asyncparl.errors import CallTimedOut as CallTimedOut
from asyncparl.errors import MessageTooLarge as MessageTooLarge
from asyncparl.errors import NotConnectedError as NotConnectedError
from asyncparl.errors import ProtocolError as ProtocolError
from asyncparl.errors import RemoteError as RemoteError
from asyncparl.errors import ResourceError as ResourceError
from asyncparl.errors import SerializationError as SerializationError
from asyncparl.runtime.call import Call as Call
from asyncparl.runtime.call import as_completed as as_completed
from asyncparl.runtime.call import gather as gather
from asyncparl.runtime.connect import Cluster as Cluster
from asyncparl.runtime.connect import connect as connect
from asyncparl.runtime.group import Group as Group
from asyncparl.runtime.group import supervise as supervise
from asyncparl.runtime.in_place import empty as empty
from asyncparl.runtime.pull import RemoteManager as RemoteManager
from asyncparl.runtime.pull import as_remote as as_remote
from asyncparl.runtime.remote import Proxy as Proxy
from asyncparl.runtime.remote import close as close
from asyncparl.runtime.remote import current_actor as current_actor
from asyncparl.runtime.remote import expose as expose
from asyncparl.runtime.remote import get_actor as get_actor
from asyncparl.runtime.remote import kill as kill
from asyncparl.runtime.remote import set_attribute as set_attribute
from asyncparl.runtime.remote_class import RemoteClass as RemoteClass
from asyncparl.runtime.remote_class import remote_class as remote_class
from asyncparl.runtime.repeats import idempotent as idempotent

if TYPE_CHECKING:
    from asyncparl.rl import Agent as Agent
    from asyncparl.rl import Algorithm as Algorithm
    from asyncparl.rl import Model as Model

_NEED_TORCH = ("Agent", "Algorithm", "Model")


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        import asyncparl.rl

        return getattr(asyncparl.rl, name)
    raise AttributeError(f"module 'asyncparl' has no attribute {name!r}")
