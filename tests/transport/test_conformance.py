"""The conformance kit, run against both transports and all schemes."""

from __future__ import annotations

import pytest

from asyncparl.transport import dial, listen
from asyncparl.transport.base import Channel, Listener
from asyncparl.transport.conformance import CHECKS, Check, Transport, check_transport, run_check
from tests.transport.addresses import FRESH_ADDRESS


def _transport(scheme: str) -> Transport:
    def listen_anew(max_message_bytes: int) -> Listener:
        return listen(FRESH_ADDRESS[scheme](), max_message_bytes=max_message_bytes)

    async def dial_with(address: str, max_message_bytes: int, timeout_s: float) -> Channel:
        return await dial(address, max_message_bytes=max_message_bytes, timeout_s=timeout_s)

    return Transport(listen_anew, dial_with)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("scheme", FRESH_ADDRESS)
async def test_transport_keeps_the_promise(scheme: str, check: Check) -> None:
    await run_check(check, _transport(scheme))


async def test_the_whole_kit_fails_for_a_transport_that_breaks_one_promise() -> None:
    transport = _transport("memory")

    def listen_without_limit(_max_message_bytes: int) -> Listener:
        return transport.listen(1 << 30)

    async def dial_without_limit(address: str, _max_message_bytes: int, timeout_s: float) -> Channel:
        return await transport.dial(address, 1 << 30, timeout_s)

    with pytest.raises(AssertionError, match="limit"):
        await check_transport(Transport(listen_without_limit, dial_without_limit))
