"""Mutants that no test noticed once, and the test of the rule that each of them breaks."""

from __future__ import annotations

from typing import NamedTuple


class KnownMutant(NamedTuple):
    """A text that occurs once in a module of `src/dcp`, what a careless maintainer makes of it, and the test.

    test: path below `tests` and name, as pytest takes them.
    """

    module: str
    code: str
    mutant: str
    test: str


FOLLOW = "client/follow/"

KNOWN: list[KnownMutant] = [
    # Changes are lost, or streams stand still.
    KnownMutant(
        f"{FOLLOW}node_link.py",
        "with contextlib.suppress(DcpError):\n                self._deliver(self.session)",
        "with contextlib.suppress(DcpError):\n                pass",
        "client/test_linger.py::test_rows_before_a_marker_are_delivered_when_their_connection_breaks_after_it",
    ),
    KnownMutant(
        f"{FOLLOW}node_link.py",
        "StreamRolledBack | StreamEnded):",
        "StreamRolledBack):",
        "client/test_linger.py::test_rows_before_the_end_of_a_stream_do_not_wait_for_the_stream_after_it",
    ),
    KnownMutant(
        f"{FOLLOW}rollback.py",
        "if vbucket.number in dropped or vbucket.link in links:",
        "if vbucket.number in dropped:",
        "client/test_persistence.py::test_vbuckets_of_a_connection_that_a_rollback_closes_are_streamed_again",
    ),
    KnownMutant(
        "client/queries.py",
        'min(int(fields["persisted_seqno"]), int(fields.get("old_seqno", fields["persisted_seqno"])))',
        'int(fields["persisted_seqno"])',
        "client/test_persistence.py::test_a_copy_has_of_an_ended_history_no_more_than_came_before_its_end",
    ),
    KnownMutant(
        f"{FOLLOW}persistence.py",
        "max(end, reached.last_seqno)",
        "end",
        "client/test_persistence.py::test_rows_are_safe_once_their_snapshot_is_persisted",
    ),
    KnownMutant(
        f"{FOLLOW}persistence.py",
        "position.seqno if position.seqno == position.snapshot_start else position.snapshot_end",
        "position.snapshot_end",
        "client/test_persistence.py::test_rows_are_safe_once_their_snapshot_is_persisted",
    ),
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "if len(item.batch) or needs:",
        "if len(item.batch):",
        "client/test_batch_queue.py::test_a_position_without_rows_waits_to_be_persisted_too",
    ),
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "last.positions | positions",
        "positions | last.positions",
        "client/test_batch_queue.py::test_a_position_without_rows_does_not_overtake_rows_that_are_queued",
    ),
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "if self._items:\n            last",
        "if False:\n            last",
        "client/test_batch_queue.py::test_a_position_without_rows_does_not_overtake_rows_that_are_queued",
    ),
    KnownMutant(
        "checkpoint.py",
        "        other.check(replace(self, positions=()))\n",
        "",
        "test_checkpoint.py::test_only_checkpoints_of_one_selection_are_merged",
    ),
    KnownMutant(
        "checkpoint.py",
        "        self.check(replace(other, positions=()))\n",
        "",
        "test_checkpoint.py::test_only_checkpoints_of_one_selection_are_merged",
    ),
    KnownMutant(
        "position.py",
        "            purge_seqno=0,\n            failover_log=self.failover_log.cut(seqno)",
        "            failover_log=self.failover_log.cut(seqno)",
        "test_position.py::test_a_purge_of_the_history_that_was_lost_is_not_known_of_the_one_before",
    ),
    KnownMutant(
        "position.py",
        "[: MOST_BRANCHES - 1]",
        "[: MOST_BRANCHES - 2]",
        "test_position.py::test_a_log_keeps_the_newest_of_its_histories",
    ),
    KnownMutant(
        "position.py",
        "[: MOST_BRANCHES - 1]",
        "[1 - MOST_BRANCHES :]",
        "test_position.py::test_a_log_keeps_the_newest_of_its_histories",
    ),
    KnownMutant(
        "client/queries.py",
        "highest.items() if vbucket in owned}",
        "highest.items()}",
        "client/test_queries.py::test_of_two_nodes_that_claim_a_vbucket_the_owner_in_the_map_counts",
    ),
    KnownMutant(
        "client/queries.py",
        "        if not lost:\n",
        "        if len(lost) < len(wanted):\n",
        "client/test_queries.py::"
        "test_a_history_that_begins_between_two_reads_is_not_paired_with_a_seqno_above_its_begin",
    ),
    KnownMutant(
        "client/stream_range.py",
        "known[number].seqno if number in known else 0 for",
        "known[number].seqno if number in known else ENDLESS for",
        "client/test_checkpoint_ends.py::test_of_a_vbucket_that_the_end_lacks_nothing_is_read",
    ),
    KnownMutant(
        "columns/row_filter.py",
        "numpy.iinfo(seqnos.dtype).max",
        "0",
        "spark/test_projection.py::test_rows_of_a_vbucket_without_an_end_pass_beside_those_after_an_end",
    ),
    KnownMutant(
        "spark/task.py",
        "return 0 < exhausted == unfinished",
        "return exhausted == unfinished",
        "spark/test_task.py::test_a_task_ends_early_only_when_all_that_it_waits_for_is_lost",
    ),
    KnownMutant(
        "spark/task.py",
        "return 0 < exhausted == unfinished",
        "return 0 < exhausted",
        "spark/test_task.py::test_a_task_ends_early_only_when_all_that_it_waits_for_is_lost",
    ),
    KnownMutant(
        "spark/task.py",
        "            waiting, size = [], 0\n",
        "            waiting = []\n",
        "spark/test_task.py::test_batches_that_were_joined_do_not_count_for_the_next",
    ),
    KnownMutant(
        "session/session.py",
        "        self._leaving.clear()\n",
        "",
        "session/test_session.py::test_rows_on_their_way_to_a_closed_stream_are_dropped",
    ),
    # Errors, waits and wakes.
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "self.error = self.error or error",
        "self.error = error",
        "client/test_batch_queue.py::test_the_first_error_counts_and_comes_after_the_rows_before_it",
    ),
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "self._items.append(item)\n        self.changed.notify_all()",
        "self._items.append(item)",
        "client/test_batch_queue.py::test_a_waiting_consumer_is_woken_by",
    ),
    KnownMutant(
        f"{FOLLOW}batch_queue.py",
        "self.error = self.error or error\n        self.changed.notify_all()",
        "self.error = self.error or error",
        "client/test_batch_queue.py::test_a_waiting_consumer_is_woken_by",
    ),
    # Copies.
    KnownMutant(
        "cli/copy_directory.py",
        "        os.fsync(file.fileno())\n",
        "",
        "cli/test_copy.py::test_a_commit_syncs_files_and_their_directories_before_the_checkpoint",
    ),
    KnownMutant(
        "cli/copy_directory.py",
        "            sync_directory(directory)\n        if",
        "            pass\n        if",
        "cli/test_copy.py::test_a_commit_syncs_files_and_their_directories_before_the_checkpoint",
    ),
    KnownMutant(
        "cli/copy_directory.py",
        "            sync_directory(self._directory)\n",
        "            pass\n",
        "cli/test_copy.py::test_a_commit_syncs_files_and_their_directories_before_the_checkpoint",
    ),
    KnownMutant(
        "cli/copy.py",
        "            due = clock() + interval\n",
        "",
        "cli/test_copy.py::test_a_commit_begins_a_new_interval",
    ),
    KnownMutant(
        "cli/copy.py",
        "            due = clock() + interval\n",
        "            due = None\n",
        "cli/test_copy.py::test_a_commit_begins_a_new_interval",
    ),
    KnownMutant(
        "cli/stop_signals.py",
        "        signal.signal(number, before[signal.Signals(number)])\n",
        "",
        "cli/test_copy.py::test_the_second_signal_acts_as_usual",
    ),
    # Addresses, names and formats.
    KnownMutant(
        "client/connection_string.py",
        'if "@" in path or "@" in query:',
        'if "@" in path:',
        "client/test_connection_string.py::test_no_part_of_a_password_is_taken_for_an_option_and_shown",
    ),
    KnownMutant(
        "session/scram.py",
        '.replace(",", "=2C")',
        "",
        "session/test_scram.py::test_a_comma_and_an_equals_sign_in_a_name_are_no_syntax",
    ),
    KnownMutant(
        "foreign_checkpoints.py",
        "window[0] <= seqno <= window[1]",
        "window[0] <= seqno < window[1]",
        "test_foreign.py::test_a_seqno_at_either_end_of_its_snapshot_is_in_it",
    ),
    KnownMutant(
        "foreign_checkpoints.py",
        "window[0] <= seqno <= window[1]",
        "window[0] < seqno <= window[1]",
        "test_foreign.py::test_a_seqno_at_either_end_of_its_snapshot_is_in_it",
    ),
    KnownMutant(
        "cluster_map.py",
        """    if any(_is_at(node.address, host, port) for node in nodes):
        return "default"
""",
        "",
        "test_cluster.py::test_a_seed_that_both_networks_list_is_inside",
    ),
    KnownMutant(
        "cluster_map.py",
        " or self.num_vbuckets != older.num_vbuckets",
        "",
        "test_cluster.py::test_another_number_of_vbuckets_is_another_bucket",
    ),
    # The embedded cluster.
    KnownMutant(
        "embedded/cluster.py",
        "        self._lock.release()\n        self._server.wake()\n",
        "        self._lock.release()\n",
        "embedded/test_cluster.py::test_a_change_wakes_the_nodes",
    ),
    KnownMutant(
        "embedded/cluster.py",
        '"name": fault.name})\n        self._server.wake()\n',
        '"name": fault.name})\n',
        "embedded/test_cluster.py::test_a_change_wakes_the_nodes",
    ),
    KnownMutant(
        "embedded/store.py",
        "other.highs = dict(self.highs)",
        "other.highs = self.highs",
        "embedded/test_store.py::test_a_copy_has_high_seqnos_of_collections_of_its_own",
    ),
    # The supervisor and its connections.
    KnownMutant(
        f"{FOLLOW}follower.py",
        """            if self._queue.closed or link.closing:
                return
            self.counters""",
        """            if self._queue.closed:
                return
            self.counters""",
        "client/test_follower.py::test_what_a_closing_connection_delivers_is_dropped",
    ),
    KnownMutant(
        f"{FOLLOW}follower.py",
        """            if self._queue.closed or link.closing:
                return
            self._dispatch""",
        """            if self._queue.closed:
                return
            self._dispatch""",
        "client/test_follower.py::test_what_a_closing_connection_delivers_is_dropped",
    ),
    KnownMutant(
        f"{FOLLOW}follower.py",
        "                self._maps.request(within=0.0)\n",
        "",
        "client/test_follower.py::test_a_lost_connection_wakes_the_supervisor_which_asks_for_a_map_at_once",
    ),
    KnownMutant(
        f"{FOLLOW}follower.py",
        "                self._queue.fail(final)\n            self._work.notify_all()\n",
        "                self._queue.fail(final)\n",
        "client/test_follower.py::test_a_lost_connection_wakes_the_supervisor_which_asks_for_a_map_at_once",
    ),
    KnownMutant(
        f"{FOLLOW}follower.py",
        "            self._work.notify_all()\n            self._queue.changed.notify_all()\n",
        "            self._queue.changed.notify_all()\n",
        "client/test_follower.py::test_an_event_wakes_supervisor_and_consumer",
    ),
    KnownMutant(
        f"{FOLLOW}follower.py",
        "            self._work.notify_all()\n            self._queue.changed.notify_all()\n",
        "            self._work.notify_all()\n",
        "client/test_follower.py::test_an_event_wakes_supervisor_and_consumer",
    ),
    KnownMutant(
        f"{FOLLOW}assigner.py",
        "            wake_times.append(vbucket.retry_at)\n",
        "",
        "client/test_follower.py::test_the_supervisor_sleeps_no_longer_than_to_the_next_request",
    ),
    KnownMutant(
        f"{FOLLOW}node_pool.py",
        "            wake_times.append(retry_at)\n",
        "",
        "client/test_follower.py::test_the_supervisor_sleeps_no_longer_than_to_the_next_connection",
    ),
    KnownMutant(
        f"{FOLLOW}assigner.py",
        "if vbucket.link is not link or vbucket.stream is not None:",
        "if vbucket.link is not link:",
        "client/test_follower.py::test_a_request_that_is_repeated_before_it_is_sent_opens_one_stream",
    ),
    KnownMutant(
        f"{FOLLOW}assigner.py",
        "if vbucket.link is not link or vbucket.stream is not None:",
        "if vbucket.stream is not None:",
        "client/test_follower.py::test_a_request_that_is_cancelled_before_it_is_sent_opens_none",
    ),
    KnownMutant(
        f"{FOLLOW}vbucket.py",
        "            self.delay = 0.0\n",
        "            pass\n",
        "client/test_follower.py::test_the_delay_begins_again_after_a_stream_that_moved_or_lasted",
    ),
    # Ends and seqnos of streams.
    KnownMutant(
        "session/stream.py",
        "seqno < min(progress.end, self.end)",
        "seqno < max(progress.end, self.end)",
        "session/test_session.py::test_a_stream_ends_at_its_end_or_that_of_its_snapshot",
    ),
    KnownMutant(
        "session/stream.py",
        "return progress.disorder is not None or seqno <",
        "return seqno <",
        "session/test_session.py::test_a_stream_ends_at_its_end_or_that_of_its_snapshot",
    ),
    KnownMutant(
        "session/stream.py",
        "0 < self._resumed_from < purge_seqno",
        "0 < self._resumed_from <= purge_seqno",
        "session/test_session.py::test_a_purge_is_reported_to_a_resumed_stream_that_ignores_it",
    ),
    KnownMutant(
        "session/stream.py",
        "            self.last_seqno = max(self.last_seqno, self.progress.position.seqno)\n",
        "",
        "session/test_session.py::test_seqnos_without_rows_count_as_received",
    ),
    # The driver of a stream.
    KnownMutant(
        "spark/stream_reader.py",
        "                self._outage.answered()\n",
        "",
        "spark/test_stream.py::test_an_outage_ends_with_the_first_answer",
    ),
    KnownMutant(
        "spark/stream_reader.py",
        "most = min(to.seqno, state.vbuckets[vbucket].high)",
        "most = state.vbuckets[vbucket].high",
        "spark/test_stream.py::test_an_end_below_the_start_stays_one_whatever_is_written_until_the_tasks_are_planned",
    ),
    KnownMutant(
        "spark/driver_view.py",
        "            if self._options.fail_on_data_loss or error.retriable:\n                raise\n"
        "        # A collection was dropped since",
        "            pass\n        # A collection was dropped since",
        "spark/test_driver_view.py::test_a_collection_that_was_dropped_since_is_an_error_or_leaves_the_end_unknown",
    ),
    # Found in samples over all rooms.
    KnownMutant(
        "client/follow/batch_queue.py",
        "if item.needs and vbucket in item.positions",
        "if item.needs or vbucket in item.positions",
        "client/test_batch_queue.py::test_rows_that_wait_for_disks_are_kept_when_another_vbucket_rolls_back",
    ),
    KnownMutant(
        "client/follow/node_link.py",
        "            session.heard(now)\n",
        "",
        "client/test_memory_bounds.py::test_rows_are_a_sign_of_life",
    ),
    KnownMutant(
        "client/follow/node_link.py",
        "            if self._registered_events:\n",
        "            if False:\n",
        "client/test_memory_bounds.py::test_a_connection_over_tls_that_was_full_is_read_again",
    ),
    KnownMutant(
        "client/follow/node_link.py",
        "daemon=True",
        "daemon=False",
        "client/test_failures.py::test_a_process_ends_although_its_stream_was_not_closed",
    ),
    KnownMutant(
        "client/follow/vbucket.py",
        "if vbucket.link is not None and (vbucket.link.full or is_full(window_of(vbucket.link))):",
        "if False:",
        "client/test_monitor.py::test_a_vbucket_whose_consumer_takes_nothing_waits_for_it_whatever_else_is_wrong",
    ),
    KnownMutant(
        "client/follow/patience.py",
        "if now - series.latest > _BREAK:",
        "if False:",
        "client/test_patience.py::test_after_a_break_a_new_series_begins",
    ),
    KnownMutant(
        "client/client.py",
        'options["persisted_within"] if tap and options["end"] is not None else None',
        "None",
        "client/test_dialects.py::test_a_tap_stream_with_an_end_fails_if_changes_stay_in_memory",
    ),
    KnownMutant(
        "client/stream.py",
        "    def __exit__(self, *_: object) -> None:\n        self.close()\n",
        "    def __exit__(self, *_: object) -> None:\n        pass\n",
        "client/test_linger.py::test_a_stream_is_closed_at_the_end_of_its_block",
    ),
    KnownMutant(
        "session/session.py",
        "decode_failover_log(stream.vbucket, frame.value))\n            self._moved.add(stream)\n",
        "decode_failover_log(stream.vbucket, frame.value))\n",
        "session/test_session.py::test_the_history_that_a_node_names_is_delivered_before_any_row",
    ),
    KnownMutant(
        "session/session.py",
        "        self._moved.add(stream)\n        return (StreamEnded(stream, int(StreamEnd.CLOSED)),)\n",
        "        return (StreamEnded(stream, int(StreamEnd.CLOSED)),)\n",
        "session/test_session.py::test_a_stream_that_is_closed_without_rows_is_delivered_as_closed",
    ),
    KnownMutant(
        "session/handshake.py",
        "wanted += [Feature.SNAPPY] if settings.snappy else []",
        "wanted += [Feature.SNAPPY]",
        "session/test_handshake.py::test_compressed_values_are_requested_only_if_they_are_wanted",
    ),
    KnownMutant(
        "session/legacy/upr.py",
        "return here.seqno if here.complete else here.snapshot_start",
        "return here.snapshot_start",
        "session/test_upr.py::test_a_stream_is_requested_from_the_last_whole_snapshot",
    ),
    KnownMutant(
        "position.py",
        "min(seqno, self.seqno if self.complete else self.snapshot_start)",
        "min(seqno, self.snapshot_start)",
        "test_position.py::test_of_a_whole_position_the_ends_of_snapshots_in_its_window_remain",
    ),
    KnownMutant(
        "json_reader.py",
        "0 < len(text) <= 16",
        "0 < len(text) < 16",
        "test_json_reader.py::test_hexadecimal_numbers_have_up_to_64_bits",
    ),
    KnownMutant(
        "foreign_checkpoints.py",
        'offset["bySeqno"].number(signed=True)',
        'offset["bySeqno"].number(signed=False)',
        "test_foreign.py::test_java_has_no_unsigned_numbers",
    ),
    KnownMutant(
        "spark/retry.py",
        "            client.refresh_map()\n",
        "            pass\n",
        "spark/test_retry.py::test_a_query_is_repeated_with_a_newer_map",
    ),
    KnownMutant(
        "spark/ranges.py",
        "(part.start.seqno > 0 and",
        "(part.start.seqno > 1 and",
        "spark/test_planner.py::test_a_new_history_is_read_even_if_nothing_was_written_in_it",
    ),
    KnownMutant(
        "cli/copy.py",
        "interval if end is None else None)",
        "interval)",
        "cli/test_copy.py::test_a_copy_that_ends_commits_at_its_end_only",
    ),
    KnownMutant(
        "cli/copy_output.py",
        "            self._directory.replace(checkpoint_name(self._number), checkpoint.to_json())\n\n",
        "            pass\n\n",
        "cli/test_copy.py::test_a_directory_is_known_as_that_of_a_copy_before_its_first_commit",
    ),
    KnownMutant(
        "cli/frame_finder.py",
        "            self._ended = True\n",
        "",
        "cli/test_inspect_captures.py::test_after_bytes_that_are_no_frame_the_rest_is_read_only_if_reading_resumes",
    ),
    KnownMutant(
        "embedded/link.py",
        "        except OSError:\n            self.gone = True\n            return False\n",
        "        except OSError:\n            return False\n",
        "embedded/test_cluster.py::test_a_client_that_is_gone_is_dropped_although_its_answers_were_not_sent",
    ),
    KnownMutant(
        "embedded/store.py",
        "self.persisted_seqno = min(self.persisted_seqno, self.high_seqno)",
        "self.persisted_seqno = max(self.persisted_seqno, self.high_seqno)",
        "embedded/test_store.py::test_what_was_undone_is_not_persisted",
    ),
    KnownMutant(
        "embedded/subdocument.py",
        "    # The array must exist.\n    _find(text, path[:-1])\n",
        "",
        "embedded/test_subdocument.py::test_an_edit_that_is_not_possible_is_refused",
    ),
    KnownMutant(
        "embedded/connection.py",
        "            self.closing = self.closing or stale\n",
        "",
        "embedded/commands/test_sasl.py::test_a_dcp_connection_takes_no_other_token_and_is_closed_at_its_next_answer",
    ),
    KnownMutant(
        "embedded/item_view.py",
        "hidden |= 0 if negotiated.snappy else int(Datatype.SNAPPY)",
        "hidden |= 0",
        "embedded/test_dcp_connection.py::test_a_consumer_without_snappy_gets_values_inflated",
    ),
    KnownMutant(
        "embedded/load.py",
        "        if was_enabled:\n            gc.enable()\n",
        "        pass\n",
        "embedded/test_arguments.py::test_loading_leaves_garbage_collection_as_it_was",
    ),
    KnownMutant(
        f"{FOLLOW}node_link.py",
        "            if not session.has_updates and not self._finished:\n                self._oldest",
        "            if True:\n                self._oldest",
        "client/test_linger.py::test_rows_that_trickle_in_over_tls_are_delivered_when_the_first_of_them_has_waited",
    ),
    KnownMutant(
        f"{FOLLOW}node_link.py",
        "self._oldest_arrival = now if idle else self._oldest_arrival",
        "self._oldest_arrival = now",
        "client/test_linger.py::test_rows_that_trickle_in_are_delivered_when_the_first_of_them_has_waited",
    ),
    KnownMutant(
        f"{FOLLOW}persistence.py",
        "self._interval, self._retry_delay = interval, retry_delay",
        "self._interval, self._retry_delay = interval, interval",
        "client/test_persistence.py::test_a_node_that_fails_is_left_alone_for_a_while_and_the_others_are_polled",
    ),
    KnownMutant(
        f"{FOLLOW}persistence.py",
        "self._nodes, self._within = nodes, within",
        "self._nodes, self._within = nodes, interval",
        "client/test_persistence.py::test_a_node_that_fails_is_left_alone_for_a_while_and_the_others_are_polled",
    ),
    KnownMutant(
        f"{FOLLOW}disk_wait.py",
        "if waiting.covered or not waiting.needed:",
        "if waiting.covered:",
        "client/test_disk_wait.py::test_the_limit_counts_from_when_the_first_of_these_vbuckets_began_to_wait",
    ),
    KnownMutant(
        f"{FOLLOW}disk_wait.py",
        "if waiting.covered or not waiting.needed:",
        "if not waiting.needed:",
        "client/test_disk_wait.py::test_the_limit_counts_from_when_the_first_of_these_vbuckets_began_to_wait",
    ),
    KnownMutant(
        f"{FOLLOW}disk_wait.py",
        "if waiting.covered or not waiting.needed:",
        "if True:",
        "client/test_disk_wait.py::test_a_vbucket_that_joins_others_does_not_prolong_their_wait",
    ),
    KnownMutant(
        "wire/reading.py",
        "furthest = max(mismatch",
        "furthest = min(mismatch",
        "test_frame.py::test_the_form_that_fits_best_says_what_is_wrong",
    ),
    KnownMutant(
        "cli/capture.py",
        "self._distance(self.acknowledged) > 0",
        "self._distance(self.acknowledged) >= 0",
        "cli/test_inspect_captures.py::test_early_segments_wait_while_the_receiver_acknowledges_what_came_before",
    ),
    KnownMutant(
        "spark/stream_reader.py",
        "if self._options.fail_on_data_loss or error.retriable:",
        "if error.retriable:",
        "spark/test_triggers.py::test_the_cluster_is_observed_again_after_a_refusal_only_if_data_may_be_lost",
    ),
    KnownMutant(
        "cli/demo/scenario.py",
        "        cleanup.callback(monitor.stop)\n",
        "",
        "cli/test_demo.py::test_a_demo_that_fails_leaves_no_thread",
    ),
    KnownMutant(
        "cli/demo/scenario.py",
        "        monitor.start()\n",
        "",
        "cli/test_demo.py::test_the_measurements_of_a_demo_begin_and_end_with_the_copy",
    ),
    KnownMutant(
        "cli/demo/scenario.py",
        "            self.copier.read()\n",
        "",
        "cli/test_demo.py::test_the_measurements_of_a_demo_begin_and_end_with_the_copy",
    ),
    KnownMutant(
        "cli/demo/scenario.py",
        "            self.copier.read()\n            monitor.sample()\n",
        "            self.copier.read()\n",
        "cli/test_demo.py::test_the_measurements_of_a_demo_begin_and_end_with_the_copy",
    ),
    # Found by samples over all rooms.
    KnownMutant(
        "spark/task.py",
        "unfinished += position.seqno < end",
        "unfinished += position.seqno <= end",
        "spark/test_task.py::test_a_task_ends_early_only_when_all_that_it_waits_for_is_lost",
    ),
    KnownMutant(
        "spark/admission.py",
        "persisted_only=False",
        "persisted_only=True",
        "spark/test_admission.py::test_the_sample_does_not_wait_for_the_disks",
    ),
    KnownMutant(
        "embedded/commands/range_scans.py",
        "if len(scans) >= _MOST_SCANS:",
        "if len(scans) > _MOST_SCANS:",
        "embedded/commands/test_range_scans.py::test_a_bucket_has_a_limit_of_scans",
    ),
    KnownMutant(
        "client/stream_range.py",
        "    _check_times(agent.dialect, end=end)\n",
        "",
        "client/test_dialects.py::test_drafts_have_no_times",
    ),
    KnownMutant(
        "spark/stream_reader.py",
        "waits = not new and any(",
        "waits = not new and all(",
        "spark/test_persisted_only.py::test_a_copy_that_lags_is_named_in_log_and_progress",
    ),
    KnownMutant(
        "embedded/store.py",
        "self.checkpoint_start = min(",
        "self.checkpoint_start = max(",
        "embedded/test_store.py::test_what_is_left_after_undone_writes_is_what_was_there_before_them",
    ),
    KnownMutant(
        "embedded/store.py",
        "other.checkpoint_start, other.checkpoint = self.checkpoint_start, self.checkpoint",
        "other.checkpoint_start = self.checkpoint_start",
        "embedded/test_store.py::test_a_copy_has_everything_and_shares_nothing",
    ),
    KnownMutant(
        "embedded/faults/fault.py",
        "self.choices = tuple(kind.__members__)",
        "self.choices = ()",
        "embedded/test_control.py::test_operations_and_faults_are_described",
    ),
    KnownMutant(
        "session/sasl.py",
        'letter <= "\\udfff"',
        'letter < "\\udfff"',
        "session/test_handshake.py::test_a_password_that_cannot_be_said_is_refused",
    ),
    KnownMutant(
        "embedded/control/state.py",
        "return 0 if owner == NOBODY else self",
        "return self",
        "embedded/test_control.py::test_a_vbucket_without_owner_has_no_seqno",
    ),
    KnownMutant(
        "client/follow/transitions.py",
        "emit_rollback(vbucket, 0, 0)",
        "emit_rollback(vbucket, 1, 0)",
        "client/test_dialects.py::test_whoever_does_not_want_rollbacks_gets_an_error",
    ),
    KnownMutant(
        "cli/count.py",
        '["behind"] if lag else []',
        '["behind"] if highs else []',
        "cli/test_count.py::test_the_tables_have_the_numbers_of_the_json",
    ),
    KnownMutant(
        "cli/tail.py",
        "_line(_hexadecimal(row) if as_hex else row, room)",
        "_line(row, room)",
        "cli/test_tail.py::test_lines_have_what_the_objects_have",
    ),
    KnownMutant(
        "cli/checkpoint.py",
        "        if rows:\n            console().print(table)\n",
        "        console().print(table)\n",
        "cli/test_checkpoint.py::test_diff_prints_differences_and_reports_them_by_its_exit_code",
    ),
    KnownMutant(
        "position.py",
        "(self.snapshot_start, *self.marks)",
        "(self.snapshot_end, *self.marks)",
        "test_position.py::test_the_start_of_a_window_is_kept_although_no_snapshot_ended_there",
    ),
    KnownMutant(
        "client/follow/node_link.py",
        "ready.get(sock, 0)",
        "ready.get(sock, 1)",
        "client/test_waits.py::test_a_connection_on_which_nothing_arrives_is_replaced",
    ),
    KnownMutant(
        "cli/doctor_checks.py",
        "str(entry[4][0])",
        "str(entry[4][1])",
        "cli/test_doctor.py::test_every_step_says_what_it_found",
    ),
    KnownMutant(
        "cli/doctor_checks.py",
        "    if found:\n        context.target = ",
        "    if False:\n        context.target = ",
        "cli/test_doctor.py::test_the_hosts_of_an_srv_record_are_shown",
    ),
    KnownMutant(
        "cli/inspect.py",
        '        found |= {} if frame.kind.answers else {"vbucket": frame.vbucket}\n',
        "",
        "cli/test_inspect_captures.py::test_a_capture_is_the_same_as_objects_as_a_table_and_while_it_arrives",
    ),
    KnownMutant(
        "cli/frame_finder.py",
        "MAX_FRAME - _HEADER_SIZE",
        "MAX_FRAME + _HEADER_SIZE",
        "cli/test_inspect_captures.py::test_a_header_of_a_frame_that_is_too_large_is_none",
    ),
    KnownMutant(
        "client/time_search.py",
        "if start == end or (start == self.low and self.purged):",
        "if start != end or (start == self.low and self.purged):",
        "client/test_time_search.py::test_a_search_finds_the_first_change_of_a_moment",
    ),
    KnownMutant(
        "spark/offsets.py",
        "return {*found} <= {*known}",
        "return {*found} < {*known}",
        "spark/test_offsets.py::test_a_query_cannot_be_restarted_with_options_that_select_more_rows",
    ),
    KnownMutant(
        "spark/options.py",
        '(not named or "value" in named)',
        '(named or "value" in named)',
        "spark/test_options.py::test_bad_values_are_set_aside_where_a_column_can_say_so",
    ),
    KnownMutant(
        "columns/document_schema.py",
        "if member[1] < 0:",
        "if member[1] <= 0:",
        "documents/test_schemas.py::test_fields_may_have_one_path",
    ),
    KnownMutant(
        "client/schema_inference.py",
        "            self.element.merge(other.element)\n",
        "            pass\n",
        "documents/test_inference.py::test_what_was_seen_of_members_of_a_map_is_joined",
    ),
    KnownMutant(
        "cli/serve.py",
        "if traffic != before.get(number, Traffic()):",
        "if True:",
        "test_serve.py::test_counters_are_printed_when_they_have_changed",
    ),
    KnownMutant(
        "cli/demo/monitor.py",
        "last.seconds - s.seconds >= _RATE_WINDOW",
        "last.seconds - s.seconds > _RATE_WINDOW",
        "cli/test_demo.py::test_rates_are_those_of_the_last_second_or_from_the_start",
    ),
    KnownMutant(
        "cli/demo/python_copier.py",
        "            self._failure = error\n",
        "            pass\n",
        "cli/test_demo.py::test_a_copier_that_cannot_write_says_so",
    ),
    KnownMutant(
        "cli/copy.py",
        "- self._start)",
        "+ self._start)",
        "cli/test_copy.py::test_a_terminal_shows_how_far_the_copy_is",
    ),
    KnownMutant(
        "embedded/item_view.py",
        "len(packed) * 100 <=",
        "len(packed) * 101 <=",
        "embedded/test_dcp_connection.py::test_values_are_compressed_where_that_saves_15_percent",
    ),
    KnownMutant(
        "embedded/management/connection.py",
        "        self._release_stream()\n        self.closing = True\n",
        "        self._release_stream()\n",
        "embedded/test_management.py::test_a_connection_without_a_request_ends_with_its_node",
    ),
    KnownMutant(
        "client/follow/assigner.py",
        "            wake_times.append(self._disk.due)\n",
        "            pass\n",
        "client/test_follower.py::test_the_supervisor_sleeps_no_longer_than_to_the_next_question_about_the_disk",
    ),
    KnownMutant(
        "embedded/commands/dcp.py",
        "    if not connection.bucket.release.failover_log_for_all:\n",
        "    if False:\n",
        "embedded/test_dcp_connection.py::test_some_releases_have_failover_logs_for_clients_that_have_not_opened_a_connection",
    ),
    KnownMutant(
        "spark/stream_reader.py",
        "self._options.max_bytes if rows else None)",
        "self._options.max_bytes)",
        "spark/test_admission.py::test_a_batch_without_a_limit_has_everything_whatever_the_options_say",
    ),
    KnownMutant(
        "embedded/connection.py",
        "        if self.closing:\n            return\n        self._splitter",
        "        self._splitter",
        "embedded/test_dcp_connection.py::test_an_invalid_header_closes_the_connection",
    ),
    KnownMutant(
        "cli/inspect.py",
        "                self._rows += len(batch)\n",
        "                pass\n",
        "cli/test_inspect_rules.py::test_a_capture_has_both_directions_and_its_changes_as_rows",
    ),
    KnownMutant(
        "wire/writing.py",
        "len(value) not in (0, f.width)",
        "False",
        "test_frame.py::test_reserved_bytes_are_all_or_none",
    ),
    KnownMutant(
        "position.py",
        "other.end_of(branch.vbuuid, MAX_U64) or 0",
        "other.end_of(branch.vbuuid, MAX_U64) or 1",
        "test_position.py::test_logs_have_in_common_what_came_before_the_first_difference",
    ),
    KnownMutant(
        "client/follow/transitions.py",
        "elif reason == StreamEnd.LOST_PRIVILEGES:",
        "elif False:",
        "client/test_odd_messages.py::test_each_reason_of_the_end_of_a_stream_has_its_consequence",
    ),
    KnownMutant(
        "cli/copy_directory.py",
        "directory.mkdir(parents=True,",
        "directory.mkdir(parents=False,",
        "cli/test_copy.py::test_a_directory_is_created_with_those_above_it",
    ),
    KnownMutant(
        "cli/count.py",
        "    if missing:\n",
        "    if False:\n",
        "cli/test_count.py::test_vbuckets_without_an_active_node_are_named",
    ),
    KnownMutant(
        "spark/stream_reader.py",
        "        self._guessed = False\n        self._outage",
        "        self._guessed = True\n        self._outage",
        "spark/test_stream.py::test_a_query_that_is_restarted_after_each_batch_knows_where_the_batches_before_ended",
    ),
    KnownMutant(
        "embedded/stream.py",
        "vbucket.high_prepared_seqno if replicates else 0",
        "vbucket.high_prepared_seqno",
        "embedded/commands/test_durability.py::test_a_backfill_has_what_is_pending_and_versions_in_place_of_commits",
    ),
    KnownMutant(
        "embedded/legacy/tap_stream.py",
        "or now >= self._last_ack + ACK_TIMEOUT",
        "or now >= self._last_ack - ACK_TIMEOUT",
        "embedded/legacy/test_tap.py::test_a_client_that_stops_acknowledging_is_disconnected",
    ),
    KnownMutant(
        "spark/task.py",
        "            self._outage.failed(error)\n        self._check_at = time.monotonic() + self._silence\n",
        "            self._outage.failed(error)\n",
        "spark/test_task.py::test_a_silent_task_asks_the_cluster_once_in_a_while",
    ),
    KnownMutant(
        "cli/client_log.py",
        '"--quiet", "-q", is_flag=True',
        '"--quiet", "-q", is_flag=False',
        "cli/test_tail.py::test_warnings_of_the_client_are_printed_on_standard_error",
    ),
    KnownMutant(
        "client/follow/transitions.py",
        "elif status in WRONG_DIALECT and not",
        "elif status in WRONG_DIALECT or not",
        "client/test_dialects.py::test_a_refused_stream_makes_one_doubt_a_dialect_that_nothing_has_shown_before",
    ),
    KnownMutant(
        "cli/tail.py",
        "if schema is not None and (as_hex or no_values):",
        "if schema is not None and (as_hex and no_values):",
        "cli/test_tail.py::test_an_error_is_a_line_with_what_is_expected",
    ),
    KnownMutant(
        "embedded/bucket.py",
        "waiting = self._unreplicated.get((owner, number))",
        "waiting = self._unreplicated.get((number, number))",
        "embedded/test_topology.py::test_a_replica_whose_node_is_restarted_catches_up_with_what_it_lacked",
    ),
    KnownMutant(
        "embedded/management/connection.py",
        "            self._queued.append(STREAM_END)\n",
        "            pass\n",
        "embedded/test_management.py::test_a_stream_says_that_it_ends",
    ),
    KnownMutant(
        "client/connection_string.py",
        'f"{self.username}@" if self.username else ""',
        'f"{self.username}@"',
        "client/test_connection_string.py::test_a_target_crosses_processes_and_keeps_its_secret_from_texts",
    ),
    KnownMutant(
        "session/session.py",
        "if silence is not None and now >= silence:",
        "if False:",
        "client/test_waits.py::test_a_connection_on_which_nothing_arrives_is_replaced",
    ),
    KnownMutant(
        "session/stream.py",
        "if len(value) > _MAX_FAILOVER_LOG:",
        "if len(value) >= _MAX_FAILOVER_LOG:",
        "session/test_session.py::test_the_longest_failover_log_is_accepted",
    ),
    KnownMutant(
        "embedded/faults/__init__.py",
        "if fault not in self.active:",
        "if False:",
        "embedded/test_faults.py::test_a_fault_is_cleared_once",
    ),
    KnownMutant(
        "client/tls.py",
        "count, self._accepted = self._accepted, 0",
        "count, self._accepted = self._accepted, 1",
        "client/test_tls.py::test_bytes_of_each_call_are_sent",
    ),
    KnownMutant(
        "client/tls.py",
        "            self._error = error\n",
        "",
        "client/test_tls.py::test_records_before_a_forged_one_are_read_and_then_it_is_an_error",
    ),
    KnownMutant(
        "client/tls.py",
        "            self._answer()\n",
        "            pass\n",
        "client/test_tls.py::test_records_before_a_forged_one_are_read_and_then_it_is_an_error",
    ),
    KnownMutant(
        "client/tls.py",
        "            if not count:\n                raise\n",
        "",
        "client/test_tls.py::test_a_forged_record_alone_is_an_error_at_once",
    ),
    KnownMutant(
        "spark/driver_view.py",
        "            self.client.refresh_map()\n",
        "            pass\n",
        "spark/test_driver_view.py::test_a_recreated_bucket_is_not_taken_for_one_whose_collections_were_dropped",
    ),
    KnownMutant(
        "spark/resume.py",
        "self.log.branches[: MOST_BRANCHES // 2]",
        "self.log.branches[: MOST_BRANCHES // 3]",
        "spark/test_resume.py::test_the_newer_half_of_a_full_failover_log_is_recent",
    ),
    KnownMutant(
        "client/schema_inference.py",
        "[: sample - documents]",
        "[: sample + documents]",
        "documents/test_inference.py::test_the_sample_has_as_many_documents_as_requested",
    ),
    KnownMutant(
        "cli/doctor_checks.py",
        "if error.status not in (Status.EACCESS, Status.UNKNOWN_COLLECTION):",
        "if False:",
        "cli/test_doctor.py::test_an_error_of_a_node_is_not_a_lack_of_privileges",
    ),
    KnownMutant(
        "columns/decoder.py",
        "        if self._error is not None:\n            return True\n",
        "",
        "test_decoder.py::test_after_a_control_that_is_wrong_nothing_is_decoded",
    ),
    KnownMutant(
        "client/follow/node_link.py",
        "if not CAN_RECEIVE or self._unsent or session.agreement",
        "if not CAN_RECEIVE or session.agreement",
        "client/test_waits.py::test_bytes_that_a_node_does_not_take_are_sent_once_it_does",
    ),
    KnownMutant(
        "client/stream.py",
        "self._limit(item.rolled_back)",
        "self._limit({n: consumed_seqno(p) for n, p in item.positions.items()} if item.link is None else {})",
        "client/test_checkpoint_ends.py::test_a_rollback_of_one_vbucket_does_not_move_the_end_of_another",
    ),
    KnownMutant(
        "client/stream.py",
        "            self._limit(item.rolled_back)\n",
        "",
        "client/test_checkpoint_ends.py::test_the_checkpoint_of_a_stream_that_rolled_back_does_not_pass_its_end",
    ),
    KnownMutant(
        "client/follow/rollback.py",
        "{number: after}, rolled_back={number: seqno})",
        "{number: after})",
        "client/test_checkpoint_ends.py::test_the_checkpoint_of_a_stream_that_rolled_back_does_not_pass_its_end",
    ),
    KnownMutant(
        "spark/resume.py",
        "if branch.seqno < seqno), self.vbuuid)",
        "if branch.seqno <= seqno), self.vbuuid)",
        "spark/test_resume.py::test_a_seqno_is_of_the_oldest_history_that_contains_it",
    ),
    KnownMutant(
        "spark/resume.py",
        "return UNKNOWN_END - 1",
        "return UNKNOWN_END + 1",
        "spark/test_resume.py::test_a_history_is_kept_up_to_its_end_and_the_present_one_as_far_as_it_was_read",
    ),
    KnownMutant(
        "spark/resume.py",
        "if vbuuid == self.vbuuid and self.high >= seqno:",
        "if vbuuid == self.vbuuid and self.high > seqno:",
        "spark/test_resume.py::test_a_history_is_kept_up_to_its_end_and_the_present_one_as_far_as_it_was_read",
    ),
    KnownMutant(
        "client/schema_inference.py",
        "            if documents >= sample:\n                break\n",
        "",
        "documents/test_inference.py::test_no_more_is_read_than_the_sample_needs",
    ),
    KnownMutant(
        "cli/doctor_checks.py",
        "        client.high_seqnos()\n    except ServerError as error:\n        if error.status != Status.EACCESS:",
        "        client.high_seqnos()\n    except ServerError as error:\n        if False:",
        "cli/test_doctor.py::test_an_error_of_a_node_is_not_a_lack_of_privileges",
    ),
    KnownMutant(
        "cli/capture.py",
        "if link is None:",
        "if False:",
        "cli/test_inspect_captures.py::test_an_unknown_link_type_is_refused",
    ),
    KnownMutant(
        "sync/engine.py",
        "                    self._reached = stream.checkpoint\n                    self._on_progress()",
        "                    self._on_progress()",
        "sync/test_sync.py::test_a_position_that_moves_without_rows_is_stored_after_ten_minutes",
    ),
    KnownMutant(
        "sync/engine.py",
        "            self._reached = stream.checkpoint\n            if batch is None:\n                return\n",
        "            if batch is None:\n                return\n            self._reached = stream.checkpoint\n",
        "sync/test_sync.py::test_a_run_stores_the_position_that_changes_of_other_collections_have_moved",
    ),
    KnownMutant(
        "sync/engine.py",
        "late = final or self._clock() >= self._committed_at + _QUIET",
        "late = True",
        "sync/test_sync.py::test_a_position_that_moves_without_rows_is_stored_after_ten_minutes",
    ),
    KnownMutant(
        "sync/parquet_target.py",
        "                sink.flush()\n",
        "",
        "sync/test_sync.py::test_a_transaction_of_a_file_lasts_the_content_first_and_then_the_name",
    ),
    KnownMutant(
        "sync/parquet_target.py",
        "        sync_directory(path.parent)\n",
        "",
        "sync/test_sync.py::test_a_transaction_of_a_file_lasts_the_content_first_and_then_the_name",
    ),
    KnownMutant(
        "sync/parquet_target.py",
        "                new.unlink(missing_ok=True)\n",
        "                pass\n",
        "sync/test_sync.py::test_a_transaction_of_a_file_that_fails_leaves_no_other_file",
    ),
    KnownMutant(
        "sync/engine.py",
        "min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE)",
        "max(2 * before, _FIRST_PAUSE)",
        "sync/test_sync.py::test_pauses_between_attempts_grow_until_one_succeeds",
    ),
    KnownMutant(
        "sync/engine.py",
        "before = 0.0 if self.progress.transactions > transactions else pause",
        "before = pause",
        "sync/test_sync.py::test_pauses_between_attempts_grow_until_one_succeeds",
    ),
    KnownMutant(
        "client/follow/rollback.py",
        "PURGED), {vbucket: here})",
        "PURGED), {})",
        "client/test_persistence.py::test_a_purge_is_reported_although_another_vbucket_takes_back_rows_that_were_not_persisted",
    ),
    KnownMutant(
        "client/follow/settings.py",
        "2 * window + max_frame)",
        "window + max_frame)",
        "client/test_small_windows.py::test_a_batch_takes_half_of_the_window_and_a_connection_holds_what_a_node_that_keeps_to_it_sends",
    ),
    KnownMutant(
        "client/follow/settings.py",
        "max(1, window // 2)",
        "max(1, window // 3)",
        "client/test_small_windows.py::test_a_batch_takes_half_of_the_window_and_a_connection_holds_what_a_node_that_keeps_to_it_sends",
    ),
    KnownMutant(
        "wire/layout.py",
        "or ((ERROR,) if status else (EMPTY,))",
        "or (ERROR,)",
        "test_frame.py::test_only_an_error_may_have_a_text_in_an_answer_without_a_form",
    ),
]
