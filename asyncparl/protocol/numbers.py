"""What a number that a user has given may be at all, before anybody asks what it means."""

from __future__ import annotations


def check_digits(name: str, number: float) -> None:
    """Raise ValueError if that is a whole number beyond all floats: it can neither be sent nor, perhaps, be printed."""
    try:
        float(number)
    except OverflowError:
        raise ValueError(f"{name} has too many digits") from None
