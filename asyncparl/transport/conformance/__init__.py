"""What every transport must do, as checks that can be run against any of them.

`check_transport(Transport(listen, dial))` runs all of them; a test suite rather has one test for each of `CHECKS`.
A check raises AssertionError where a promise of `base.py` is broken, and ends within `CHECK_TIMEOUT_S`. The checks need
real time: some of them use threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from asyncparl.transport.conformance import endings, listeners, messages, sharing, visitors, waiting
from asyncparl.transport.conformance.harness import CHECK_TIMEOUT_S as CHECK_TIMEOUT_S
from asyncparl.transport.conformance.harness import Dial as Dial
from asyncparl.transport.conformance.harness import Transport as Transport

Check: TypeAlias = Callable[[Transport], Awaitable[None]]


async def check_transport(transport: Transport) -> None:
    """Run every check, one after the other."""
    for check in CHECKS:
        await run_check(check, transport)


async def run_check(check: Check, transport: Transport) -> None:
    """Run one of `CHECKS`; `trio.TooSlowError` if it does not end in time."""
    with trio.fail_after(CHECK_TIMEOUT_S):
        await check(transport)


CHECKS: tuple[Check, ...] = (
    messages.check_messages_keep_their_order_both_ways,
    messages.check_messages_of_any_size_arrive_whole,
    messages.check_parts_become_one_message,
    messages.check_an_empty_message_arrives,
    messages.check_parts_may_change_after_sending,
    messages.check_received_views_are_writable_and_outlive_the_channel,
    messages.check_too_large_a_message_fails_at_the_sender,
    messages.check_threads_may_send,
    messages.check_statistics_count_messages_and_bytes,
    waiting.check_nothing_to_receive_would_block,
    waiting.check_a_full_queue_makes_senders_wait_and_loses_nothing,
    waiting.check_a_cancelled_send_has_sent_nothing,
    waiting.check_a_cancelled_receive_loses_nothing,
    waiting.check_only_one_task_receives,
    endings.check_the_loss_wakes_a_waiting_receiver,
    endings.check_the_loss_wakes_every_waiting_sender,
    endings.check_the_loss_is_final,
    endings.check_what_arrived_is_delivered_before_the_loss,
    endings.check_a_sudden_end_leaves_a_prefix,
    endings.check_closing_wakes_ones_own_tasks,
    endings.check_a_closed_channel_stays_closed,
    listeners.check_one_listener_has_many_channels,
    listeners.check_many_may_dial_at_once,
    listeners.check_a_cancelled_accept_takes_nobody,
    listeners.check_closing_a_listener_spares_its_channels,
    listeners.check_dialing_nobody_fails,
    listeners.check_dialing_a_listener_that_does_not_accept_fails_in_time,
    listeners.check_a_listener_that_closes_fails_those_who_dial,
    visitors.check_a_visitor_says_whose_key_it_has_and_where_it_wants_to_go,
    visitors.check_who_is_refused_hears_why,
    visitors.check_a_visitor_is_decided_once,
    visitors.check_a_visitor_that_is_not_decided_on_is_hung_up_on,
    visitors.check_a_visitor_that_has_gone_becomes_a_lost_channel,
    visitors.check_visitors_may_be_decided_in_any_order_and_without_their_listener,
    visitors.check_who_has_no_key_stays_outside,
    sharing.check_there_is_an_arena_if_the_dialer_wants_one,
    sharing.check_what_is_lent_is_seen_by_the_peer,
    sharing.check_what_is_lent_is_a_copy,
    sharing.check_borrowed_views_are_writable_and_outlive_the_channel,
    sharing.check_a_block_is_returned_when_its_last_view_dies_in_any_thread,
    sharing.check_a_full_arena_lends_nothing_and_waits_for_nobody,
    sharing.check_what_is_not_returned_is_never_used_again,
    sharing.check_an_end_knows_when_there_is_much_to_return,
    sharing.check_what_is_made_in_place_is_lent_without_a_copy,
    sharing.check_what_was_handed_over_is_copied_the_next_time,
    sharing.check_foreign_memory_is_refused,
    sharing.check_a_closed_channel_lends_and_borrows_nothing,
)
