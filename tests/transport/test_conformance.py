"""The conformance kit, run against both transports, all schemes, and with keys and encryption."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from asyncparl.transport import Credentials, dial, listen
from asyncparl.transport.base import Channel, Listener
from asyncparl.transport.conformance import CHECKS, Check, Dial, Transport, check_transport, run_check
from tests.transport.addresses import FRESH_ADDRESS
from tests.transport.members import MEMBER, UNKNOWN, WRONG_KEY, keys


class Kind(NamedTuple):
    """A way to connect."""

    scheme: str
    has_keys: bool = False
    encrypt: bool = False

    def __str__(self) -> str:
        return self.scheme + "+keys" * self.has_keys + "+tls" * self.encrypt


KINDS = (
    Kind("ipc"),
    Kind("tcp"),
    Kind("memory"),
    Kind("tcp", has_keys=True),
    Kind("tcp", has_keys=True, encrypt=True),
    Kind("ipc", has_keys=True),
    Kind("ipc", encrypt=True),
    Kind("memory", has_keys=True),
)


def _dial_as(credentials: Credentials | None, *, encrypt: bool) -> Dial:
    async def dial_with(
        address: str, max_message_bytes: int, timeout_s: float, *, route: str = "", shared_bytes: int = 0
    ) -> Channel:
        return await dial(
            address,
            credentials=credentials,
            route=route,
            encrypt=encrypt,
            max_message_bytes=max_message_bytes,
            shared_bytes=shared_bytes,
            timeout_s=timeout_s,
        )

    return dial_with


def _transport(kind: Kind) -> Transport:
    def listen_anew(max_message_bytes: int) -> Listener:
        address = FRESH_ADDRESS[kind.scheme]()
        return listen(address, keys=keys if kind.has_keys else None, max_message_bytes=max_message_bytes)

    me, others = (MEMBER, (WRONG_KEY, UNKNOWN, None)) if kind.has_keys else (None, (MEMBER,))
    return Transport(
        listen_anew,
        _dial_as(me, encrypt=kind.encrypt),
        key_id="" if me is None else me.key_id,
        outsiders=[_dial_as(other, encrypt=kind.encrypt) for other in others],
        shares=kind.scheme != "tcp" and not kind.encrypt,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_transport_keeps_the_promise(kind: Kind, check: Check) -> None:
    await run_check(check, _transport(kind))


async def test_the_whole_kit_fails_for_a_transport_that_breaks_one_promise() -> None:
    transport = _transport(Kind("memory"))

    def listen_without_limit(_max_message_bytes: int) -> Listener:
        return transport.listen(1 << 30)

    async def dial_without_limit(
        address: str, _max_message_bytes: int, timeout_s: float, *, route: str = "", shared_bytes: int = 0
    ) -> Channel:
        return await transport.dial(address, 1 << 30, timeout_s, route=route, shared_bytes=shared_bytes)

    with pytest.raises(AssertionError, match="limit"):
        await check_transport(Transport(listen_without_limit, dial_without_limit, shares=True))
