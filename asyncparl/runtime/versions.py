"""What must agree between the processes of a cluster."""

from __future__ import annotations

from asyncparl._version import __version__
from asyncparl.machine import installed_version, python_version
from asyncparl.protocol.parties import Versions


def our_versions() -> Versions:
    """Those of this process. Imports none of the packages.

    Raises:
        OSError: too many files are open.
    """
    return Versions(asyncparl=__version__, python=python_version(), numpy=installed_version("numpy"))
