// SPDX-License-Identifier: Apache-2.0

//! Replays commands recorded from Cilium against an agent with the answers of the recording. Cells are compared with
//! their widths; the order of lines is free, as many of them come from maps.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;
use serde_json::Value;

/// Status and body by method, path, and body of the request.
pub(crate) type Answers = BTreeMap<String, Vec<Value>>;

#[derive(Deserialize)]
struct Recording {
    answers: Answers,
    commands: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    command: String,
    exit_code: i32,
    /// None: help, in words of our own.
    stdout: Option<String>,
    stderr: String,
}

fn answer(mut stream: UnixStream, answers: &Answers) -> Option<()> {
    let mut request = Vec::new();
    let (head, body) = loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).ok().filter(|length| *length > 0)?;
        request.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let mut words = head.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let key = match method {
        "GET" if !body.is_empty() => format!("{method} {path} {body}"),
        _ => format!("{method} {path}"),
    };
    let missing = [Value::from(404)];
    let found = answers.get(&key).map_or(&missing[..], Vec::as_slice);
    let (status, body) = (&found[0], found.get(1));
    let body = match body.map(|body| (body, body["lines"].as_array())) {
        None => String::new(),
        Some((_, Some(lines))) => lines.iter().map(|line| format!("{line}\n")).collect(),
        Some((body, None)) => body.to_string(),
    };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).ok()
}

/// A line with words instead of ages, whose width differs.
fn without_age(line: &str) -> String {
    if !line.contains(" ago ") && !line.contains("  Last success  ") && !line.contains("  never  ") {
        return line.to_owned();
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let words = words
        .iter()
        .enumerate()
        .map(|(at, word)| match words.get(at + 1) {
            Some(&"ago") => "some time",
            _ => word,
        });
    words.collect::<Vec<_>>().join(" ")
}

/// Lines without the order of maps, and with our names.
fn lines(text: &str) -> Vec<String> {
    let text = text.replace("cilium-dbg", "skep");
    let mut lines: Vec<String> = text.split('\n').map(without_age).collect();
    lines.sort();
    lines
}

/// An agent with these answers.
fn serve(folder: &Path, answers: Answers) -> PathBuf {
    let socket = folder.join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &answers);
        }
    });
    socket
}

/// An agent with the answers of the recording, and others.
pub(crate) fn agent(folder: &Path, others: Answers) -> PathBuf {
    let recording: Recording = serde_json::from_str(include_str!("../testdata/recorded.json")).unwrap();
    let mut answers = recording.answers;
    answers.extend(others);
    serve(folder, answers)
}

#[test]
fn commands_print_what_cilium_prints() {
    replay(include_str!("../testdata/recorded.json"));
}

#[test]
fn status_and_health_are_printed_as_cilium_prints_them() {
    replay(include_str!("../testdata/recorded-health.json"));
}

#[track_caller]
fn replay(recording: &str) {
    let recording: Recording = serde_json::from_str(recording).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = serve(folder.path(), recording.answers);
    let mut failures = Vec::new();
    for recorded in &recording.commands {
        let output = Command::new(env!("CARGO_BIN_EXE_skep"))
            .env("CILIUM_SOCK", format!("unix://{}", socket.display()))
            .args(recorded.command.split(' '))
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(recorded.exit_code) {
            let status = output.status;
            failures.push(format!("{}: {status}\n{stderr}", recorded.command));
        }
        for (found, expected) in [
            (&stdout, recorded.stdout.as_ref()),
            (&stderr, Some(&recorded.stderr)),
        ] {
            let Some(expected) = expected else { continue };
            let (found, expected) = (lines(found), lines(expected));
            let differs = found
                .iter()
                .zip(&expected)
                .find(|(found, expected)| found != expected);
            if found != expected {
                let counts = (found.len(), expected.len());
                failures.push(format!("{}: {counts:?} lines\n{differs:#?}", recorded.command));
            }
        }
    }
    let all = recording.commands.len();
    assert!(
        failures.is_empty(),
        "{} of {all}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
