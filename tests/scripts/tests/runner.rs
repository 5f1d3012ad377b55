// SPDX-License-Identifier: Apache-2.0

//! The program itself: what it prints and how it exits.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(dir: &Path, args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_run-scripts"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

#[test]
fn a_reader_that_goes_away_changes_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "good.txtar", "sleep 50ms\n");

    let mut child = Command::new(env!("CARGO_BIN_EXE_run-scripts"))
        .current_dir(dir.path())
        .args(["--hive", "hive", "--verbose", "good.txtar"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());

    assert!(child.wait().unwrap().success());
}

#[test]
fn verdicts_come_in_order_and_failures_with_their_diff() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "slow.txtar", "sleep 200ms\n");
    write(
        dir.path(),
        "bad.txtar",
        "# compare\ncmp a b\n-- a --\n1\n-- b --\n2\n",
    );
    write(dir.path(), "args.txtar", "#! --no-such-flag=1\n");

    let (output, text) = run(
        dir.path(),
        &[
            "--hive",
            "hive",
            "slow.txtar",
            "bad.txtar",
            "args.txtar",
            "missing.txtar",
        ],
    );

    assert!(!output.status.success());
    assert!(
        text.starts_with(
            "PASS slow.txtar\nFAIL bad.txtar\n    bad.txtar:2: cmp a b: a and b differ\n    diff a b\n    --- a\n    +++ b\n    @@ -1 +1 @@\n    -1\n    +2\nFAIL args.txtar\n"
        ),
        "{text}"
    );
    assert!(text.contains("no-such-flag"), "{text}");
    assert!(
        text.contains("FAIL missing.txtar\n    cannot read script missing.txtar: No such file"),
        "{text}"
    );
    assert!(text.ends_with("\n1 passed, 3 failed\n"), "{text}");
}

#[test]
fn files_that_are_no_scripts_are_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder.txtar")).unwrap();
    std::fs::write(dir.path().join("bytes.txtar"), b"echo x\n# \xff\n").unwrap();
    write(dir.path(), "out.txtar", "echo x\n-- ../../up --\n");
    write(dir.path(), "twice.txtar", "echo x\n-- a --\n-- a/b --\n");
    write(dir.path(), "empty.txtar", "");

    let (output, text) = run(
        dir.path(),
        &[
            "--hive",
            "hive",
            "folder.txtar",
            "bytes.txtar",
            "out.txtar",
            "twice.txtar",
            "empty.txtar",
        ],
    );

    assert!(!output.status.success());
    for part in [
        "FAIL folder.txtar\n    cannot read script folder.txtar: Is a directory",
        "FAIL bytes.txtar\n    script bytes.txtar is not UTF-8: byte 0xff in line 2\n",
        "FAIL out.txtar\n    file `../../up` of the archive lies outside of the work directory\n",
        "FAIL twice.txtar\n    cannot unpack `a/b` to ",
        "PASS empty.txtar\n1 passed, 4 failed\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn interrupted_scripts_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "slow.txtar",
        "exec sh -c 'pwd > $DATADIR/place'\nexec sleep 100\n",
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_run-scripts"))
        .current_dir(dir.path())
        .args(["--hive", "hive", "slow.txtar"])
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    let place = loop {
        let place = std::fs::read_to_string(dir.path().join("place")).unwrap_or_default();
        if place.ends_with('\n') {
            break place;
        }
        assert!(started.elapsed().as_secs() < 30, "the script does not start");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(Path::new(place.trim_end()).exists());

    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!Path::new(place.trim_end()).exists());
}

#[test]
fn success_is_the_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "good.txtar", "[verbose] echo x\n");

    let (output, text) = run(
        dir.path(),
        &["--hive", "hive", "--maps", "fake", "-v", "good.txtar"],
    );

    assert!(output.status.success());
    assert!(
        text.ends_with("> [verbose] echo x\n[stdout]\nx\nPASS good.txtar\n1 passed, 0 failed\n"),
        "{text}"
    );
}

#[test]
fn expected_files_are_updated() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "x.txtar",
        "echo new\ncmp stdout want\n-- want --\nold\n",
    );

    let (output, text) = run(dir.path(), &["--hive", "hive", "--update", "x.txtar"]);

    assert!(output.status.success());
    assert_eq!(text, "PASS x.txtar (updated)\n1 passed, 0 failed\n");
    let updated = std::fs::read_to_string(dir.path().join("x.txtar")).unwrap();
    assert_eq!(updated, "echo new\ncmp stdout want\n-- want --\nnew\n");
}

#[test]
fn unknown_suites_are_refused_with_a_list() {
    let dir = tempfile::tempdir().unwrap();

    let (output, _) = run(dir.path(), &["--hive", "nope", "x.txtar"]);

    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("statedb"));
    let (output, text) = run(dir.path(), &["--list"]);
    assert!(output.status.success(), "{text}");
    // Names as long as `clustermesh-apiserver` ran into the text.
    let column = |name: &str, summary: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.find(summary))
    };
    let short = column("metrics", "Commands on metrics");
    assert!(short.is_some(), "{text}");
    assert_eq!(
        column("clustermesh-apiserver", "The state of a cluster"),
        short,
        "{text}"
    );
}

#[test]
fn time_of_each_script_can_be_set() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "slow.txtar", "sleep 1m\n");

    let (output, text) = run(dir.path(), &["--hive", "hive", "--time", "20ms", "slow.txtar"]);
    let (wrong, _) = run(dir.path(), &["--hive", "hive", "--time", "20", "slow.txtar"]);

    assert!(!output.status.success());
    assert!(text.contains("context deadline exceeded"), "{text}");
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("missing unit in duration"),
        "{wrong:?}"
    );
}

/// As root: the maps are in the kernel, below a BPF file system in a mount namespace of the program's own.
#[test]
fn maps_of_the_kernel_are_unmounted_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "maps.txtar",
        "#! --lb-test-fault-probability=0\nhive/start\n[privileged] lb/maps-empty\n[!privileged] stdout never\n",
    );

    let (output, text) = run(
        dir.path(),
        &["--hive", "loadbalancer", "--maps", "bpf", "maps.txtar"],
    );

    assert!(
        output.status.success() && text == "PASS maps.txtar\n1 passed, 0 failed\n",
        "{text}"
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("run-scripts-"), "{mounts}");
}

#[test]
fn values_of_choices_are_listed() {
    let dir = tempfile::tempdir().unwrap();

    let (wrong, _) = run(
        dir.path(),
        &["--hive", "loadbalancer", "--maps", "paper", "x.txtar"],
    );
    let (_, help) = run(dir.path(), &["--help"]);

    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(error.contains("[possible values: fake, bpf]"), "{error}");
    assert!(
        help.contains("Which load-balancing maps the scripts work on"),
        "{help}"
    );
}
