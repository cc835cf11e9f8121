"""The process of a private cluster, as a test finds it."""

from __future__ import annotations

import psutil


def node_process() -> psutil.Process:
    """Of the private cluster that this process has. It may have other children, of earlier tests' libraries."""
    children = psutil.Process().children()
    (node,) = [child for child in children if any("zygote_start.py" in word for word in child.cmdline())]
    return node
