"""Bad input and bad days: the event, the result for the user, and its tests and cases. A test checks that they exist."""

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
        "`TypeError` (arguments) or `UsageError` (options) at enqueue, naming it; nothing is stored (bulk calls: per item)",
        (
            "test_arguments_of_the_wrong_type_raise_type_error_and_nothing_is_written",
            "test_a_value_that_cannot_be_encoded_is_refused_and_the_argument_is_named",
            "test_an_unknown_option_is_refused_and_the_closest_name_is_suggested",
            "test_invalid_calls_are_named_and_the_others_are_sent",
        ),
    ),
    Row(
        "payload over `max_payload_bytes`",
        '`PayloadTooLarge` at enqueue; in the worker: dead("oversize"), the handler is not called',
        (
            "test_a_payload_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused",
            "test_a_job_whose_arguments_exceed_the_workers_limit_is_oversize",
        ),
    ),
    Row(
        "undecodable entry",
        'dead("malformed"), its raw bytes are kept; the rest of the batch is processed',
        (
            "test_an_entry_that_is_not_a_message_is_malformed_and_its_bytes_are_kept",
            "test_an_entry_that_raises_any_decoding_error_is_malformed_and_the_other_jobs_run",
            "test_an_entry_that_was_trimmed_after_its_claim_becomes_a_dead_letter",
        ),
    ),
    Row(
        "unknown task name",
        'snoozed for up to `unknown_task_grace`, then dead("unknown_task"); the worker logs a warning',
        (
            "test_a_job_of_an_unknown_task_is_snoozed_and_then_dead",
            "test_a_job_of_an_unknown_task_runs_if_a_newer_worker_starts_in_time",
        ),
    ),
    Row(
        "arguments that no longer match the signature",
        'dead("invalid_arguments") with the validation error',
        ("test_a_job_whose_arguments_no_longer_match_the_task_is_invalid",),
    ),
    Row(
        "return value that cannot be encoded or is too large",
        'dead("invalid_result"), without a retry, because the work was done',
        (
            "test_a_job_whose_result_cannot_be_encoded_is_invalid_and_is_not_retried",
            "test_a_job_whose_result_exceeds_max_payload_bytes_is_dead_as_invalid_result",
        ),
    ),
    Row(
        "wrong password, wrong server version, not a Redis",
        "one clear error at the start, and exit code 3; no silent retry loop",
        (
            "test_a_wrong_password_exits_with_3_immediately",
            "test_a_server_of_version_5_exits_with_3_immediately",
            "test_a_server_that_does_not_speak_redis_exits_with_3",
        ),
        ("refusals",),
    ),
    Row(
        "server restarts, drops the connection, loses the consumer group (`NOGROUP`)",
        "the worker reconnects with backoff and jitter, recreates the group, reloads scripts, and logs one line for the outage "
        "and one for the recovery; it keeps outcomes and settles those it still owns",
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
        "enqueue while the server is unreachable",
        "`BrokerUnavailable` within the timeout, with the job's id: the job may or may not be stored, and enqueueing it again "
        "with the same id is safe",
        (
            "test_when_patience_runs_out_each_waiter_receives_its_own_ids",
            "test_a_job_that_may_have_been_accepted_can_be_enqueued_again_with_its_id",
            "test_when_the_server_stays_unreachable_the_remaining_jobs_fail_without_waiting_for_each",
        ),
        ("go_away", "stall", "demote", "fill_disk", "half_open"),
    ),
    Row(
        "server out of memory",
        "`BrokerUnavailable` naming the cause at enqueue; settling and renewing still work, so workers can drain a full "
        "server; the worker warns at its start about an eviction policy other than `noeviction`",
        ("test_workers_can_drain_a_server_whose_memory_is_full", "test_a_worker_warns_about_a_server_that_may_evict_jobs"),
        ("fill",),
    ),
    Row(
        "read-only replica, full disk (`MISCONF`)",
        "`BrokerUnavailable` naming the cause; the worker keeps outcomes in memory up to a limit, starts no new handler, and "
        "settles when writes work again",
        (
            "test_outcomes_are_kept_while_the_server_refuses_writes",
            "test_outcomes_refused_by_the_server_for_a_while_are_kept_and_nothing_runs_twice",
        ),
        ("demote", "fill_disk"),
    ),
    Row(
        "handler blocks the event loop",
        "a warning with the task name and a stack; the lease is kept",
        (
            "test_a_blocked_event_loop_is_reported_with_the_task_and_its_stack",
            "test_a_long_handler_runs_once_while_a_second_worker_checks_leases",
            "test_a_process_blocked_beyond_every_job_timeout_is_killed_and_its_job_redelivered",
        ),
    ),
    Row(
        "SIGTERM, SIGINT",
        "the worker stops claiming, releases unstarted jobs, waits for running jobs up to `grace`, then cancels them; Ctrl-C "
        "says how to stop now",
        (
            "test_a_worker_stopped_under_load_exits_with_0_and_releases_unstarted_jobs",
            "test_a_job_that_outlasts_the_grace_period_is_cancelled_and_released",
            "test_a_second_signal_stops_the_worker_immediately_and_releases_its_jobs",
        ),
    ),
    Row(
        "clock skew between machines",
        "the server's time counts",
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
        "the jobs of a killed process run elsewhere; those of a stopped process once its lease lapses, and its outcomes are "
        "refused when it continues",
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
        "a worker dies while all others are at their limit, with long handlers",
        "its messages run once its lease has lapsed and another worker's handler has ended, in every kind of queue and group",
        ("test_a_dead_workers_jobs_run_although_all_other_workers_are_busy",),
        ("busy",),
    ),
    Row(
        "failover: the primary becomes a replica, and its name resolves to another server",
        "clients and workers close their old connections, which answer `READONLY`, and connect to the new primary; no job is "
        "lost, and no job runs twice",
        ("test_no_job_is_lost_and_every_second_run_has_a_cause",),
        ("fail_over",),
    ),
    Row(
        "the network drops idle connections silently",
        "the next call detects it, reconnects and succeeds within its 5 s",
        ("test_the_next_call_succeeds_after_the_network_dropped_idle_connections",),
        ("idle",),
    ),
    Row(
        "the lease keys are deleted or evicted",
        "workers register again; running jobs run again, and no job is stranded",
        ("test_no_job_is_lost_and_every_second_run_has_a_cause",),
        ("lose_leases", "storm"),
    ),
    Row(
        "workers of two releases serve one queue",
        "a task that only some of them know runs on those; it never dies as `unknown_task` while one of them lives",
        ("test_new_tasks_run_while_workers_of_two_releases_serve",),
        ("fleet",),
    ),
    Row(
        "a request or its reply is lost",
        "the client sends the request again and returns the same answer as without the loss",
        ("test_each_method_reports_the_truth_whichever_of_its_calls_is_lost",),
        ("lost_calls",),
    ),
    Row(
        "the owner of a shard dies, stops, or freezes beyond its lease",
        "another worker owns the shard: immediately if the owner stopped or its process died, otherwise within the lease and "
        "2 s; a shard never has two owners. Late outcomes of the old owner are refused. Events of a key continue in order, and "
        "a retry keeps its attempt",
        (
            "test_events_of_a_key_are_done_in_publish_order_and_no_event_is_lost",
            "test_jobs_of_a_key_are_done_in_enqueue_order_and_no_job_is_lost",
            "test_live_workers_share_shards_evenly_and_a_shard_never_has_two_owners",
            "test_a_stopping_worker_does_not_rejoin_however_long_it_takes",
        ),
        ("order", "ordered_tasks", "ownership", "storm"),
    ),
)
