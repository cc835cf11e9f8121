"""The web monitor: a cluster, its actors and its training runs, live in a browser.

`source.py` is all that it knows of a cluster; `observer.py` turns what a source has seen into a `Picture`, without I/O;
`watch.py` looks as often as somebody wants to see; `web.py` shows it. It changes nothing, neither in the cluster nor
on disk.
"""
