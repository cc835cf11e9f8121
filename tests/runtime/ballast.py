"""A module that takes much memory, for workers that are forked from a process which has imported it."""

BALLAST = bytearray(b"ballast.") * (16 << 20)
