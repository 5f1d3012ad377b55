// SPDX-License-Identifier: Apache-2.0

//! A program as a process: signals, exit codes, introspection. The test binary runs itself as the program.
#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use hive::{
    Cell, Cfg, Config, Hook, HookCtx, Job, JobCtx, Jobs, Lifecycle, OnFailure, Program, Readiness, SpawnError,
};

#[derive(Clone, Config)]
struct Options {
    /// What the program does.
    #[config(default = "serve")]
    mode: String,
    /// How loud.
    #[config(default = 1)]
    loudness: u8,
}

/// Speaks on standard output, one line at a time.
fn say(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Blocks the thread until the process ends.
fn block() -> ! {
    say("blocks");
    loop {
        std::thread::park();
    }
}

fn work(
    options: Cfg<Options>,
    lifecycle: Lifecycle,
    readiness: Readiness,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let mode = options.mode.clone();
    if mode == "block-build" {
        block();
    }
    lifecycle.add(
        Hook::new("first")
            .on_start(|_: HookCtx| async { say("first started") })
            .on_stop(|_: HookCtx| async { say("first stopped") }),
    );
    let (start, stop) = (mode.clone(), mode.clone());
    lifecycle.add(
        Hook::new("second")
            .on_start(move |_: HookCtx| {
                let mode = start.clone();
                async move {
                    match mode.as_str() {
                        "block-start" => block(),
                        "hang-start" => {
                            say("hangs");
                            std::future::pending().await
                        }
                        "fail-start" => Err(std::io::Error::other("port taken")),
                        _ => Ok(()),
                    }
                }
            })
            .on_stop(move |_: HookCtx| {
                let mode = stop.clone();
                async move {
                    if mode == "hang-stop" {
                        say("stop hangs");
                        std::future::pending::<()>().await;
                    }
                }
            }),
    );
    if mode == "not-ready" {
        std::mem::forget(readiness.guard("never released"));
    }
    jobs.spawn(
        Job::once("serve", move |cx: JobCtx| {
            let mode = mode.clone();
            async move {
                say("serving");
                if mode == "fail-job" {
                    return Err(std::io::Error::other("socket closed"));
                }
                cx.cancelled().await;
                Ok(())
            }
        })
        .on_failure(OnFailure::Shutdown),
    )
}

/// Settings without which there is no program.
#[derive(Clone, hive::Config)]
#[config(validate = Required::check)]
struct Required {
    /// Where it works.
    #[config(default = "")]
    shop: String,
    /// How much there is.
    #[config(default = 4)]
    shelves: u32,
}

impl Required {
    fn check(&self, faults: &mut hive::config::Faults) {
        if self.shop.is_empty() {
            faults.add("shop", "must be given");
        }
    }
}

fn program() -> Program {
    let mut worker = Cell::module("worker", "Works").config::<Options>().run(work);
    if std::env::var_os("HIVE_TEST_REQUIRED").is_some() {
        worker = worker.config::<Required>();
    }
    if std::env::var_os("HIVE_TEST_BAD_DEFAULT").is_some() {
        worker = worker.config::<BadDefault>();
    }
    Program::new("test-program", [worker])
        .about("A program for tests")
        .version("1.2.3")
        .env_prefix("TESTPROG")
}

/// Runs the program instead of the tests when the environment says so.
#[test]
fn zz_program_itself() -> ExitCode {
    match std::env::var("HIVE_TEST_PROGRAM") {
        Ok(args) => {
            let args = args.split_whitespace().map(str::to_owned).collect();
            let code = program().run_with(args, std::env::vars().collect());
            std::process::exit(code.into());
        }
        Err(_) => ExitCode::SUCCESS,
    }
}

fn command(args: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "zz_program_itself", "--nocapture", "--test-threads=1"])
        .env("HIVE_TEST_PROGRAM", args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn output(args: &str) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command(args).output().unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
    )
}

/// Waits until the program has said something.
fn wait_for(child: &mut Child, text: &str) -> String {
    let mut seen = String::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    let begun = Instant::now();
    while !seen.contains(text) {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{text:?} not in {seen:?}"
        );
        assert!(out.read(&mut byte).unwrap() > 0, "{text:?} not in {seen:?}");
        seen.push(byte[0].into());
    }
    seen
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {}", child.id())])
        .status()
        .unwrap();
    assert!(status.success());
}

fn end(child: Child) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
    )
}

#[test]
fn signal_stops_the_program_cleanly() {
    for name in ["TERM", "INT", "HUP"] {
        let mut child = command("").spawn().unwrap();
        wait_for(&mut child, "serving");

        signal(&child, name);

        let (code, out, err) = end(child);
        assert_eq!((code, out.contains("first stopped")), (0, true), "{out}{err}");
    }
}

#[test]
fn signal_during_start_rolls_back() {
    let mut child = command("--mode=hang-start").spawn().unwrap();
    wait_for(&mut child, "hangs");

    signal(&child, "TERM");

    let (code, out, err) = end(child);
    assert_eq!((code, out.contains("first stopped")), (0, true), "{out}{err}");
}

#[test]
fn second_signal_forces_the_end_and_names_what_was_pending() {
    let mut child = command("--mode=hang-stop").spawn().unwrap();
    wait_for(&mut child, "serving");
    signal(&child, "TERM");
    wait_for(&mut child, "stop hangs");

    signal(&child, "INT");

    let (code, _, err) = end(child);
    assert_eq!(code, 128 + 2, "{err}");
    assert!(
        err.contains("while stopping; not done:\n  hook `second` of module `worker` (")
            && err.contains(") for "),
        "{err}"
    );
}

#[test]
fn signals_are_heard_when_nobody_reads_what_the_program_says() {
    let mut child = command("--mode=hang-stop").spawn().unwrap();
    wait_for(&mut child, "serving");
    drop(child.stderr.take());
    signal(&child, "TERM");
    wait_for(&mut child, "stop hangs");

    signal(&child, "INT");

    assert_eq!(end(child).0, 128 + 2);
}

#[test]
fn exit_codes_tell_what_failed() {
    let (code, _, err) = output("--mode=fail-job");
    assert_eq!(code, 1);
    assert!(
        err.contains("error: job `serve` of module `worker` failed: socket closed"),
        "{err}"
    );
    let (code, out, err) = output("--mode=fail-start");
    assert_eq!((code, out.contains("first stopped")), (69, true));
    assert!(
        err.contains("hook `second` of module `worker`: port taken"),
        "{err}"
    );
    let (code, _, err) = output("--mdoe=x");
    assert_eq!(code, 64);
    assert!(err.contains("did you mean `--mode`?"), "{err}");
    let (code, _, err) = output("--hive-stop-timeout=5");
    assert_eq!(code, 78);
    assert!(err.contains("error[H010]"), "{err}");
    assert_eq!(output("hive grahp").0, 64);
}

#[test]
fn failures_are_told_without_a_subscriber() {
    let (_, out, err) = output("--mode=fail-job");

    assert!(
        err.contains("warning: Job failed module=worker job=serve error=socket closed"),
        "{err}"
    );
    assert!(!out.contains("Started") && !err.contains("Started"), "{out}{err}");
}

#[test]
fn stuck_stop_hook_ends_with_its_own_exit_code() {
    let mut child = command("--mode=hang-stop --hive-stop-timeout=400ms")
        .spawn()
        .unwrap();
    wait_for(&mut child, "serving");

    signal(&child, "TERM");

    let (code, out, err) = end(child);
    assert_eq!((code, out.contains("first stopped")), (71, true), "{out}{err}");
    assert!(
        err.contains("hook `second` of module `worker` was not done after"),
        "{err}"
    );
}

#[test]
fn first_signal_names_what_blocks_and_the_second_forces_the_end() {
    for (mode, name) in [
        (
            "block-start",
            "start hook `second` of module `worker` (hive/tests/program.rs:",
        ),
        (
            "block-build",
            "constructor `program::work` of module `worker` (hive/tests/program.rs:",
        ),
    ] {
        let mut child = command(&format!("--mode={mode}")).spawn().unwrap();
        wait_for(&mut child, "blocks");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();

        signal(&child, "TERM");

        let line = lines.next().unwrap().unwrap();
        assert!(
            line.starts_with("SIGTERM: the program stops when this is done"),
            "{line}"
        );
        let line = lines.next().unwrap().unwrap();
        assert!(line.trim_start().starts_with(name), "{line}");
        signal(&child, "TERM");
        assert_eq!(end(child).0, 143);
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        assert!(rest[0].contains("forced to end"), "{rest:?}");
    }
}

#[test]
fn what_blocks_past_its_deadline_ends_the_program_and_is_named() {
    let children = [
        ("block-start", "start hook `second`"),
        ("block-build", "constructor `program::work`"),
    ]
    .map(|(mode, name)| {
        let flags = "--hive-start-timeout=300ms --hive-report-interval=100ms";
        (command(&format!("--mode={mode} {flags}")).spawn().unwrap(), name)
    });

    for (child, name) in children {
        let (code, _, err) = end(child);
        assert_eq!(code, 69, "{err}");
        assert!(err.contains("warning: Still waiting for "), "{err}");
        assert!(err.contains("blocks its thread past its deadline"), "{err}");
        let last = err.lines().last().unwrap().trim_start();
        assert!(last.starts_with(name), "{err}");
        assert!(
            last.contains("of module `worker` (hive/tests/program.rs:"),
            "{err}"
        );
    }
}

#[test]
fn program_shows_itself_without_running() {
    for (args, expected) in [
        ("hive", "Ⓜ️ worker (Works):"),
        ("hive plan", "program::work"),
        ("hive dot-graph", "digraph hive"),
        ("hive graph --format=mermaid --module worker", "flowchart LR"),
        ("hive graph --format json --depth=1 --from work", "\"functions\""),
        ("hive config --mode=x", "mode                  x        flag"),
        ("--mode=x hive config", "mode                  x        flag"),
        ("--mode x hive config", "mode                  x        flag"),
        ("hive --mode x config", "mode                  x        flag"),
        (
            "--mode hive --config-unknown warn hive config",
            "mode                  hive     flag",
        ),
        ("--format json --depth=1 hive graph --from work", "\"functions\""),
        ("--json hive check --variants", "\"findings\""),
        ("--mode x version", "test-program 1.2.3"),
        ("--mode=x help", "--mode string"),
        ("hive catalogue", ""),
        ("hive check", "no error, 0 warnings"),
        ("hive check --json --variants", "\"findings\""),
        ("hive check --strict", "no error, 0 warnings"),
        (
            "hive check --stats",
            "1 module, 1 function, 1 of them run, 11 settings",
        ),
        ("hive config --json", "\"name\": \"loudness\""),
        ("hive config --schema", "\"title\": \"Settings of test-program\""),
        (
            "hive docs",
            "| `--mode` | `TESTPROG_MODE` | string | `serve` | worker | What the program does. |",
        ),
        ("--help", "A program for tests"),
        ("--help", "--mode string"),
        ("help", "--mode string"),
        ("--version", "test-program 1.2.3"),
        ("version", "test-program 1.2.3"),
    ] {
        let (code, out, err) = output(args);
        assert_eq!(code, 0, "{args}: {err}");
        assert!(out.contains(expected), "{args}: {out}");
        assert!(!out.contains("started"), "{args}: {out}");
    }
}

#[test]
fn words_that_are_values_or_stand_behind_others_are_no_commands() {
    for args in [
        "serve hive config",
        "--mode=x -- hive",
        "--mode x hive config now",
    ] {
        let (code, out, err) = output(args);

        assert_eq!(code, 64, "{args}: {err}");
        // Nothing behind what the test runner prints.
        assert!(out.ends_with("zz_program_itself ... "), "{args}: {out}");
    }
    let (_, _, err) = output("--mode x hive confg");
    assert!(
        err.contains("unknown command `hive confg`; did you mean `config`?"),
        "{err}"
    );
}

#[derive(Clone)]
struct Even(u32);

impl std::str::FromStr for Even {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u32>() {
            Ok(number) if number % 2 == 0 => Ok(Self(number)),
            _ => Err(format!("`{text}` is not an even number")),
        }
    }
}

impl std::fmt::Display for Even {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

hive::config_value!(Even, "even");

#[derive(Clone, Config)]
struct BadDefault {
    /// How many pairs of shoes.
    #[config(default = 3)]
    shoes: Even,
}

#[test]
fn default_that_cannot_be_read_fails_the_plan_and_leaves_the_help() {
    let cell = || Cell::module("worker", "Works").config::<BadDefault>();

    let report = hive::Hive::new([cell()]).plan(hive::Settings::new()).unwrap_err();
    // With a value from elsewhere, too.
    let settings = hive::Settings::new().args(["--shoes=4"]);
    let given = hive::Hive::new([cell()]).plan(settings).unwrap_err();

    let expected = "`shoes` (from default): `3` is not an even number";
    for report in [report, given] {
        assert!(report.to_string().contains(expected), "{report}");
    }
    let child = command("--help")
        .env("HIVE_TEST_BAD_DEFAULT", "1")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr),
    );
    assert!(out.contains("--shoes even"), "{out}");
    assert!(err.contains(expected), "{err}");
    assert_eq!(child.status.code(), Some(78));
}

#[test]
fn help_asks_for_no_settings() {
    let child = command("--help").env("HIVE_TEST_REQUIRED", "1").output().unwrap();

    let (out, err) = (
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr),
    );
    assert!(out.contains("How much there is. (default 4)"), "{out}");
    assert_eq!((&*err, child.status.code()), ("", Some(0)));
}

/// It was an error, so that a program with a setting that must be given had no reference.
#[test]
fn reference_asks_for_no_settings() {
    let child = command("hive docs")
        .env("HIVE_TEST_REQUIRED", "1")
        .output()
        .unwrap();

    let (out, err) = (
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr),
    );
    assert_eq!((&*err, child.status.code()), ("", Some(0)));
    assert!(out.contains("| `4` | "), "{out}");
    assert!(out.contains("How much there is. |"), "{out}");
    assert!(
        out.contains("| `--config-dir` | `TESTPROG_CONFIG_DIR` |"),
        "{out}"
    );
}

/// It was waited for whoever would write into the pipe; what comes from one that is written was lost.
#[test]
fn a_config_file_that_is_no_regular_file_is_an_error() {
    let folder = std::env::temp_dir().join(format!("hive-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pipe = folder.join("config.yaml");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());

    for path in [&pipe, &folder] {
        let (code, _, err) = output(&format!("hive config --config={}", path.display()));
        assert_eq!(code, 78, "{err}");
        let expected = format!("config file {}: it is not a regular file", path.display());
        assert!(err.contains(&expected), "{err}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn settings_come_from_environment_and_directory() {
    let directory = std::env::temp_dir().join(format!("hive-program-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("mode"), "from-dir\n").unwrap();
    std::fs::write(directory.join("foreign"), "x").unwrap();
    let args = format!(
        "hive config --config-dir={} --config-unknown ignore",
        directory.display()
    );

    let (_, from_directory, _) = output(&args);
    let strict = output(&format!("hive config --config-dir={}", directory.display()));
    let refused = output(&format!("--config-dir={}", directory.display()));
    std::fs::write(directory.join("config-unknown"), "ignore").unwrap();
    let lenient = output(&format!("hive config --config-dir={}", directory.display()));
    std::fs::remove_file(directory.join("config-unknown")).unwrap();
    let from_env = command(&args).env("TESTPROG_MODE", "from-env").output().unwrap();
    for key in ["other", "lodness"] {
        std::fs::write(directory.join(key), "x").unwrap();
    }
    let checked = output(&format!(
        "hive check --config-unknown=warn --config-dir={}",
        directory.display()
    ));

    std::fs::remove_dir_all(&directory).unwrap();
    // Keys of other programs are listed in one line; a likely misspelling stands alone.
    let shared = format!(
        "warning[H011]: 2 unknown settings `foreign`, `other` (from dir {})",
        directory.display()
    );
    assert!(checked.1.contains(&shared), "{}{}", checked.1, checked.2);
    let slip = "did you mean `loudness`?";
    assert!(checked.1.contains(slip), "{}{}", checked.1, checked.2);
    assert!(from_directory.contains("from-dir"), "{from_directory}");
    assert_eq!((strict.0, refused.0), (78, 78));
    let help = "remove it, or accept unknown settings with `--config-unknown=warn`";
    assert!(refused.2.contains(help), "{}", refused.2);
    assert_eq!(lenient.0, 0, "a file may say so itself: {}", lenient.2);
    assert!(strict.2.contains("unknown setting `foreign`"), "{}", strict.2);
    assert!(String::from_utf8_lossy(&from_env.stdout).contains("env TESTPROG_MODE"));
}

/// A socket like that of a service manager.
struct Manager {
    socket: std::os::unix::net::UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hive-manager-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { socket, path }
    }

    fn message(&self) -> String {
        let mut text = [0; 512];
        let length = self
            .socket
            .recv(&mut text)
            .expect("a message to the service manager");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    /// The next message that is not a sign of life.
    fn news(&self) -> String {
        loop {
            let message = self.message();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn service_manager_hears_of_readiness_life_and_stop() {
    let manager = Manager::new("life");
    let child = command("")
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "20000")
        .spawn()
        .unwrap();
    assert_eq!(manager.news(), "STATUS=Starting\n");
    assert_eq!(manager.news(), "READY=1\nSTATUS=Running\n");
    while manager.message() != "WATCHDOG=1\n" {}

    signal(&child, "TERM");
    assert_eq!(manager.news(), "STOPPING=1\nSTATUS=Stopping: signal SIGTERM\n");
    assert_eq!(end(child).0, 0);
}

#[test]
fn service_manager_is_not_told_of_readiness_while_somebody_holds_it_back() {
    let manager = Manager::new("guard");
    let mut child = command("--mode=not-ready")
        .env("NOTIFY_SOCKET", &manager.path)
        .spawn()
        .unwrap();
    wait_for(&mut child, "serving");

    signal(&child, "TERM");

    assert_eq!(manager.news(), "STATUS=Starting\n");
    assert_eq!(manager.news(), "STOPPING=1\nSTATUS=Stopping: signal SIGTERM\n");
    assert_eq!(end(child).0, 0);
}
