// SPDX-License-Identifier: Apache-2.0

//! The behaviours that users of the original hive and StateDB rely on, and the tests that hold us to them.
//!
//! Each line is a behaviour, the folder of the tests, and their names. "Changed" marks what differs on purpose.
//! The test fails when one of the named tests is gone.

use std::path::{Path, PathBuf};

const HIVE: &str = "hive/tests";
const TABLES: &str = "hive/statedb";
const SCRIPTS: &str = "hive/script";
const SHELL: &str = "hive/shell";
const REFLECTORS: &str = "cells/k8s/reflectors";
const API_SERVER: &str = "cells/k8s/apiserver/tests";

#[rustfmt::skip]
const PARITY: &[(u8, &str, &str, &[&str])] = &[
    (1, "an unused constructor is not run", HIVE, &["unused_constructor_is_not_run"]),
    (2, "a constructor runs once though needed by many", HIVE, &["constructor_runs_once_though_needed_by_many"]),
    (3, "what a nested module provides is visible at the root", HIVE, &["provider_of_a_nested_module_is_visible_at_the_root"]),
    (4, "a private provider is invisible to siblings and parents; the message says where it is", HIVE,
        &["private_provider_is_seen_inside_only_and_the_report_says_where_it_is"]),
    (5, "a private value must not hide another (changed)", HIVE, &["private_value_must_not_hide_another"]),
    (6, "a decorator affects its subtree only, composes, and applies to constructors declared inside", HIVE,
        &["decorator_affects_its_subtree_composes_and_reaches_constructors_inside"]),
    (7, "group members of unrelated cells all run, in a stable order (changed)", HIVE,
        &["group_members_of_unrelated_cells_come_in_the_order_of_declaration"]),
    (8, "optional is `None` if absent, and a finding if broken (changed)", HIVE, &["optional_is_none_only_if_nothing_provides_it"]),
    (9, "a duplicate provider reports both places", HIVE, &["duplicate_provider_reports_both_places"]),
    (10, "a cycle reports its path, also among unused constructors", HIVE, &["cycle_reports_its_path_also_among_unused_constructors"]),
    (11, "all findings come at once (changed)", HIVE, &["all_findings_come_at_once_and_nothing_is_run"]),
    (12, "ids and descriptions of modules follow rules; paths are unique (changed)", HIVE, &["module_ids_titles_and_paths_follow_the_rules"]),
    (13, "the same cells work in two hives in parallel", HIVE, &["same_cells_work_in_two_hives_in_parallel"]),
    (14, "hooks start in the order of dependencies and stop in reverse", HIVE, &["hooks_start_in_dependency_order_and_stop_in_reverse"]),
    (15, "a failed start rolls back what had started, and returns both errors", HIVE,
        &["failed_start_rolls_back_what_had_started_and_returns_both_errors"]),
    (16, "stop continues after an error and after a stuck hook (changed)", HIVE,
        &["stop_continues_after_an_error_and_a_panic", "stuck_stop_hooks_are_abandoned_and_named_and_the_others_run"]),
    (17, "starting twice is impossible by type (changed): `ui/start_twice.rs`", HIVE, &["wrong_constructors_get_readable_messages"]),
    (18, "a signal during start stops cleanly (changed)", HIVE, &["signal_during_start_rolls_back"]),
    (19, "a request to stop with an error becomes the exit error", HIVE,
        &["first_shutdown_request_becomes_the_exit_cause", "job_that_must_not_fail_stops_the_hive_with_its_error"]),
    (20, "precedence of the sources of settings", HIVE, &["flag_beats_environment_beats_directory_beats_file_beats_default"]),
    (21, "dashes and underscores are one spelling", HIVE, &["dashes_and_underscores_are_one_spelling"]),
    (22, "comma and white-space lists are equal across sources", HIVE, &["lists_are_equal_across_sources"]),
    (23, "values of maps may contain commas", HIVE, &["map_values_can_contain_commas"]),
    (24, "a config directory is a mounted ConfigMap: `..data` and sub-directories skipped, values trimmed, files named", HIVE,
        &["config_directory_reads_a_mounted_config_map"]),
    (25, "a duplicate flag names both cells (changed)", HIVE, &["duplicate_flag_names_both_cells"]),
    (26, "one-shot: n retries are n+1 runs; cancelled means no retry; only the own cancellation counts (changed)", HIVE,
        &["one_shot_with_n_retries_runs_n_plus_one_times_and_its_failure_stays",
          "cancelled_job_is_not_retried_but_an_inner_cancellation_is_an_error"]),
    (27, "timer: first tick after the interval, no overlap, folding, trailing trigger (changed)", HIVE,
        &["timer_ticks_after_the_interval_without_overlap_and_folds_missed_ticks",
          "triggers_fold_and_a_trigger_in_the_window_runs_at_its_end"]),
    (28, "observer: an error does not end it", HIVE, &["observer_survives_an_error_and_reports_recovery_at_once"]),
    (29, "runtime jobs stop before any hook", HIVE, &["jobs_start_after_the_hooks_of_their_constructor_and_runtime_jobs_stop_first"]),
    (30, "a job added after stop is an error (changed)", HIVE, &["job_added_after_stop_is_an_error"]),
    (31, "a panic in a job is contained (changed)", HIVE, &["panicking_job_is_contained_and_shows_in_health_and_metrics"]),
    (32, "closing health removes exactly its subtree (changed)", HIVE, &["health_close_removes_exactly_its_subtree"]),
    (33, "scripts: sections, prefixes, conditions, quoting, expansion, background, update mode", SCRIPTS,
        &["sections_show_their_duration", "prefixes_turn_failures_around", "conditions_guard_lines", "quotes_group_and_join",
          "values_are_not_split_again", "background_output_comes_with_wait_in_order_of_start", "expected_files_are_replaced"]),
    (34, "a repetition shows the last failure (changed)", SCRIPTS, &["last_failure_is_reported_with_its_diff"]),
    (35, "shell: many connections, safe from panics, no `exec` (changed)", SHELL,
        &["connections_do_not_wait_for_each_other", "panic_ends_the_command_only", "commands_stream_their_output"]),
    (36, "tables: snapshots are isolated, an abort restores the revision, several tables change at once", TABLES,
        &["snapshot_does_not_see_later_commits", "dropped_transaction_undoes_objects_and_revision", "several_tables_change_together"]),
    (37, "a watch closes exactly for the touched subtree", TABLES, &["watch_closes_exactly_for_the_touched_key_or_prefix"]),
    (38, "a change stream shows each object's last state; deletions are kept until seen", TABLES,
        &["first_all_objects_then_last_states_and_deletions", "deletions_are_kept_until_every_reader_has_seen_them"]),
    (39, "a unique index is enforced (changed)", TABLES, &["unique_secondary_index_is_enforced"]),
    (40, "signed keys sort (changed)", TABLES, &["signed_keys_sort_by_value"]),
    (41, "an initialiser survives an abort (changed)", TABLES, &["initializer_survives_an_aborted_transaction"]),
    (42, "reconciler: pending to done, retry with backoff, conflicts keep the retry, prune after initialisation, refresh", TABLES,
        &["pending_becomes_done_and_mutations_are_kept", "failures_are_retried_with_growing_pauses",
          "status_conflict_keeps_the_retry_and_the_others_change", "prunes_only_after_initialization_then_at_intervals",
          "refreshes_what_was_applied_long_ago"]),
    (43, "waiting until a revision is reconciled tells whether something still fails", TABLES,
        &["failures_are_retried_with_growing_pauses"]),
    (44, "`db/cmp` compares a subset of columns and shows the difference", TABLES,
        &["compares_by_column_subset", "mismatch_is_shown_after_the_timeout"]),
    (45, "a re-list is one transaction, and touches own rows only", REFLECTORS,
        &["after_gone_a_list_finds_deletions_in_one_transaction", "only_own_rows_are_deleted_by_a_list"]),
    (46, "the embedded API server: conflicts, watches, selectors, status", API_SERVER,
        &["conflicts", "changes", "selectors", "status"]),
];

/// The text of all sources below a folder.
fn sources(folder: &Path, text: &mut String) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && let Ok(source) = std::fs::read_to_string(&path)
        {
            text.push_str(&source);
        }
    }
}

#[test]
fn every_behaviour_has_its_tests() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut missing = Vec::new();
    for folder in [HIVE, TABLES, SCRIPTS, SHELL, REFLECTORS, API_SERVER] {
        let mut text = String::new();
        sources(&root.join(folder), &mut text);
        for (number, behaviour, _, tests) in PARITY.iter().filter(|(_, _, of, _)| *of == folder) {
            for test in tests.iter().filter(|test| !text.contains(&format!("fn {test}("))) {
                missing.push(format!("{number}. {behaviour}: no test `{test}` below {folder}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_list_is_complete() {
    let numbers: Vec<u8> = PARITY.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, (1..=46).collect::<Vec<_>>());
}
