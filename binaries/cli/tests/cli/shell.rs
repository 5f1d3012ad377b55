// SPDX-License-Identifier: Apache-2.0

//! Commands that the agent runs in its shell.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

/// Runs `skep` with these words against a shell that answers any command so. Returns what it was asked, too.
fn skep(words: &[&str], answer: &'static str) -> (String, Output) {
    let folder = tempfile::tempdir().expect("there is a folder");
    let socket = folder.path().join("shell.sock");
    let listener = UnixListener::bind(&socket).expect("it listens");
    let shell = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it is asked");
        let mut line = String::new();
        BufReader::new(stream.try_clone().expect("it is shared"))
            .read_line(&mut line)
            .expect("it is read");
        stream.write_all(answer.as_bytes()).expect("it is answered");
        line
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.arg("--shell-sock-path").arg(&socket).args(words);
    let output = command.output().expect("the program runs");
    (shell.join().expect("it was asked"), output)
}

#[test]
fn a_check_that_fails_is_an_exit_status() {
    let words = ["troubleshoot", "clustermesh", "--timeout=2s", "alder"];

    let (asked, output) = skep(
        &words,
        "[stdout]\nFound 1\n   \u{274c} no\nchecks failed of `alder`<<error>>\n",
    );
    assert_eq!(asked, "clustermesh/troubleshoot --timeout=2s alder\n");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "Found 1\n   \u{274c} no\n"
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: checks failed of `alder`\n"
    );

    let (_, output) = skep(&words, "[stdout]\nFound 1\n<<end>>\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Found 1\n");
    assert_eq!(output.stderr, b"");
}

#[test]
fn a_timeout_of_the_wrong_form_is_found_before_the_agent_is_asked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args([
        "--shell-sock-path=/nonexistent",
        "troubleshoot",
        "clustermesh",
        "--timeout=soon",
    ]);

    let output = command.output().expect("the program runs");

    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("'--timeout <TIMEOUT>': expected a duration such as 300ms, 5s or 1h30m"),
        "{text}"
    );
}
