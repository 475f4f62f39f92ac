"""Bad input and bad days: what happens, what the user gets, and which cases and tests hold it. A test sees that they exist."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One promise."""

    happens: str
    gets: str
    tests: tuple[str, ...]
    """Functions somewhere under ``tests``."""
    cases: tuple[str, ...] = ()
    """Cases and trials of this suite."""


ROWS = (
    Row(
        "argument that cannot be encoded, wrong types, unknown option",
        "`TypeError` (arguments) or `UsageError` (options) at enqueue, naming it; nothing written (in bulk calls: per item)",
        (
            "test_arguments_of_the_wrong_type_raise_type_error_and_nothing_is_written",
            "test_a_value_that_cannot_be_encoded_is_refused_and_the_argument_is_named",
            "test_an_unknown_option_is_refused_and_the_closest_name_is_suggested",
            "test_invalid_calls_are_named_and_the_others_are_sent",
        ),
    ),
    Row(
        "payload over `max_payload_bytes`",
        '`PayloadTooLarge` at enqueue; on receive: dead("oversize"), handler not called',
        (
            "test_a_payload_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused",
            "test_a_job_whose_arguments_exceed_the_workers_limit_is_oversize",
        ),
    ),
    Row(
        "undecodable entry",
        'dead("malformed") with the raw bytes kept; the batch goes on',
        (
            "test_an_entry_that_is_not_a_message_is_malformed_and_its_bytes_are_kept",
            "test_an_entry_that_raises_any_decoding_error_is_malformed_and_the_other_jobs_run",
            "test_an_entry_that_was_trimmed_after_its_claim_becomes_a_dead_letter",
        ),
    ),
    Row(
        "unknown task name",
        'put off up to `unknown_task_grace`, then dead("unknown_task"); the worker warns',
        (
            "test_a_job_of_an_unknown_task_is_snoozed_and_then_dead",
            "test_a_job_of_an_unknown_task_runs_if_a_newer_worker_starts_in_time",
        ),
    ),
    Row(
        "arguments that no longer fit the signature",
        'dead("invalid_arguments") with the validation error',
        ("test_a_job_whose_arguments_no_longer_match_the_task_is_invalid",),
    ),
    Row(
        "return value that cannot be encoded or is too large",
        'dead("invalid_result"), no retry: the work was done',
        (
            "test_a_job_whose_result_cannot_be_encoded_is_invalid_and_is_not_retried",
            "test_a_job_whose_result_exceeds_max_payload_bytes_is_dead_as_invalid_result",
        ),
    ),
    Row(
        "wrong password, wrong server version, not a Redis",
        "one clear error at start and exit code 3; not a silent retry loop",
        (
            "test_a_wrong_password_exits_with_3_immediately",
            "test_a_server_of_version_5_exits_with_3_immediately",
            "test_a_server_that_does_not_speak_redis_exits_with_3",
        ),
        ("refusals",),
    ),
    Row(
        "server restarts, drops the connection, loses the group (`NOGROUP`)",
        "reconnect with backoff and jitter, group made again, scripts loaded again, log once each way, carry on; outcomes kept "
        "and settled if still owned",
        (
            "test_a_server_restart_loses_no_job_and_makes_no_job_run_twice",
            "test_repeated_connection_losses_lose_no_job_and_make_no_job_run_twice",
            "test_a_destroyed_consumer_group_is_recreated",
            "test_flushed_scripts_are_loaded_again",
        ),
        (
            "restart",
            "kill_always",
            "kill_everysec",
            "stall",
            "destroy_groups",
            "flush_scripts",
            "flush_all",
            "cut_all",
            "cut_one",
            "half_open",
            "lose_replies",
            "tear_replies",
            "outage",
        ),
    ),
    Row(
        "enqueue while the server is away",
        "`BrokerUnavailable` within its timeout, carrying the job's id: its fate is unknown, enqueueing the same id again is "
        "safe",
        (
            "test_when_patience_runs_out_each_waiter_receives_its_own_ids",
            "test_a_job_that_may_have_been_accepted_can_be_enqueued_again_with_its_id",
            "test_when_the_server_stays_unreachable_the_remaining_jobs_fail_without_waiting_for_each",
        ),
        ("go_away", "stall", "demote", "fill_disk", "half_open"),
    ),
    Row(
        "server out of memory",
        "`BrokerUnavailable` naming it at enqueue; settling and renewing go on, so a full server can empty itself; an eviction "
        "policy other than `noeviction` is warned about at start",
        ("test_workers_can_drain_a_server_whose_memory_is_full", "test_a_worker_warns_about_a_server_that_may_evict_jobs"),
        ("fill",),
    ),
    Row(
        "read-only replica, full disk (`MISCONF`)",
        "`BrokerUnavailable` naming it; outcomes are kept in memory up to the hold bound, no new handler starts, settled when "
        "writes work again",
        (
            "test_outcomes_are_kept_while_the_server_refuses_writes",
            "test_outcomes_refused_by_the_server_for_a_while_are_kept_and_nothing_runs_twice",
        ),
        ("demote", "fill_disk"),
    ),
    Row(
        "handler blocks the loop",
        "warned with the task name and a stack; the lease is kept",
        (
            "test_a_blocked_event_loop_is_reported_with_the_task_and_its_stack",
            "test_a_long_handler_runs_once_while_a_second_worker_checks_leases",
            "test_a_process_blocked_beyond_every_job_timeout_is_killed_and_its_job_redelivered",
        ),
    ),
    Row(
        "SIGTERM, SIGINT",
        "stops claiming, hands back, lets running work finish within `grace`, then cancels; Ctrl-C says how to stop now",
        (
            "test_a_worker_stopped_under_load_exits_with_0_and_releases_unstarted_jobs",
            "test_a_job_that_outlasts_the_grace_period_is_cancelled_and_released",
            "test_a_second_signal_stops_the_worker_immediately_and_releases_its_jobs",
        ),
    ),
    Row(
        "clock skew between machines",
        "server time decides",
        ("test_after_a_jump_of_the_server_clock_no_lease_lapses_before_it_could_be_renewed",),
        ("wrong_clocks",),
    ),
    Row(
        "app or worker dropped without closing",
        "`ResourceWarning`",
        ("test_an_app_that_was_entered_and_dropped_warns", "test_a_worker_that_was_entered_and_dropped_warns_and_stops"),
    ),
    Row(
        "processes killed or stopped",
        "a killed process's jobs run elsewhere, a stopped one's once its lease has lapsed; it is refused when it comes back",
        (
            "test_the_jobs_of_a_killed_child_run_elsewhere_immediately",
            "test_the_jobs_of_a_killed_worker_run_elsewhere_after_its_lease",
            "test_a_worker_frozen_past_its_lease_has_its_outcome_refused_and_keeps_working",
        ),
        (
            "kill_child",
            "kill_supervisor",
            "kill_worker",
            "stop_child",
            "stop_supervisor",
            "stop_worker",
            "stop_worker_briefly",
            "kill_test",
        ),
    ),
    Row(
        "a worker dies while all others are at their limit, with handlers that take long",
        "what it held runs when its lease has expired and a handler of a survivor has ended, in every kind of lane",
        ("test_a_dead_workers_jobs_run_although_all_other_workers_are_busy",),
        ("busy",),
    ),
    Row(
        "failover: the primary becomes a replica, and its name leads to another server",
        "clients and workers leave the old connections, which answer `READONLY`, and connect to the new primary; nothing is "
        "lost, and nothing runs twice",
        ("test_no_job_is_lost_and_every_second_run_has_a_cause",),
        ("fail_over",),
    ),
    Row(
        "idle connections are dropped without a word",
        "the next call notices, connects again and succeeds within its 5 s",
        ("test_the_next_call_succeeds_after_the_network_dropped_idle_connections",),
        ("idle",),
    ),
    Row(
        "the keys that hold the leases are deleted or evicted",
        "workers join again; what was running runs again, and nothing is stranded",
        ("test_no_job_is_lost_and_every_second_run_has_a_cause",),
        ("lose_leases", "storm"),
    ),
    Row(
        "workers of two versions serve one queue",
        "a task that only some of them know runs on those; it never dies as `unknown_task` while one of them lives",
        ("test_new_tasks_run_while_workers_of_two_releases_serve",),
        ("fleet",),
    ),
    Row(
        "a request or its reply is lost",
        "the client sends it again and answers as if nothing had happened",
        ("test_each_method_reports_the_truth_whichever_of_its_calls_is_lost",),
        ("lost_calls",),
    ),
    Row(
        "the owner of a shard dies, leaves, or stands still beyond its lease",
        "another one owns it: at once if it left or its process died, else within the lease and 2 s; never two at a time. What "
        "the old one comes back with is refused. Events of a key go on in their order, a retry with its attempt",
        (
            "test_events_of_a_key_are_done_in_publish_order_and_no_event_is_lost",
            "test_jobs_of_a_key_are_done_in_enqueue_order_and_no_job_is_lost",
            "test_live_workers_share_shards_evenly_and_a_shard_never_has_two_owners",
            "test_a_stopping_worker_does_not_rejoin_however_long_it_takes",
        ),
        ("order", "ordered_tasks", "ownership", "storm"),
    ),
)
