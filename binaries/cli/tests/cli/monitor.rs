// SPDX-License-Identifier: Apache-2.0

//! `skep monitor` as a program, with a socket that the test serves.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use skep_datapath_monitor_events::{agent::AgentNotify, payload};

fn monitor(socket: &Path, words: &[&str]) -> Child {
    monitor_of(Path::new("/nowhere/agent.sock"), socket, words)
}

fn monitor_of(agent: &Path, socket: &Path, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_skep"))
        .arg(format!("--host=unix://{}", agent.display()))
        .arg("monitor")
        .args(words)
        .env("CILIUM_MONITOR_SOCK", socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn events_are_printed_as_they_come_until_the_agent_closes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("monitor1_2.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut child = monitor(&socket, &[]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let line = |from: &mut dyn BufRead| {
        let mut text = String::new();
        from.read_line(&mut text).unwrap();
        text
    };

    let (mut server, _) = listener.accept().unwrap();
    server.write_all(payload::DEFINITION).unwrap();
    assert_eq!(line(&mut errors), "Press Ctrl-C to quit\n");
    for kind in [5, 6] {
        let event = AgentNotify {
            kind,
            text: "{}".to_owned(),
        };
        // Each arrives before the next one is sent.
        server
            .write_all(&payload::event_message(0, [&event.to_bytes(), &[]]))
            .unwrap();
        assert_eq!(line(&mut out), format!(">> {}: {{}}\n", event.name()));
    }
    drop(server);

    assert_eq!(line(&mut errors), "connection closed, connecting again in 12 s\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn without_a_socket_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");

    let mut child = monitor(&socket, &["-v"]);

    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("Cannot open monitor socket"), "{text}");
}

#[test]
fn what_is_no_monitor_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("other.sock");
    let listener = UnixListener::bind(&socket).unwrap();

    let mut child = monitor(&socket, &["--json"]);
    let (mut server, _) = listener.accept().unwrap();
    server
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n and more, as much as the first byte says it is")
        .unwrap();
    drop(server);

    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("decoding error: gob: "), "{text}");
}

/// An agent with the endpoints 7 and 12, and no status.
fn serve_endpoints(listener: &UnixListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap();
        let is_list = request[..length].starts_with(b"GET /v1/endpoint ");
        let (status, body) = match is_list {
            true => ("200 OK", r#"[{"id": 7}, {"id": 12}]"#),
            false => ("404 Not Found", "\"\""),
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
        write!(stream, "{head}connection: close\r\n\r\n{body}").unwrap();
        if is_list {
            return;
        }
    }
}

#[test]
fn endpoints_that_do_not_exist_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, socket) = (
        folder.path().join("agent.sock"),
        folder.path().join("monitor1_2.sock"),
    );
    let (agents, monitors) = (
        UnixListener::bind(&agent).unwrap(),
        UnixListener::bind(&socket).unwrap(),
    );

    let mut child = monitor_of(&agent, &socket, &["--related-to=5,7", "--from=12", "--to=6"]);
    serve_endpoints(&agents);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut line = || errors.next().unwrap().unwrap();
    assert_eq!(line(), "endpoint 5 not found");
    assert_eq!(line(), "endpoint 6 not found");
    assert_eq!(line(), "Press Ctrl-C to quit");
    child.kill().unwrap();
    child.wait().unwrap();

    // The host is no endpoint of the list, but has events.
    for (words, code) in [(&["--to=5"][..], Some(1)), (&["--from=5", "--to=0"][..], None)] {
        let mut child = monitor_of(&agent, &socket, words);
        serve_endpoints(&agents);
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        errors.read_line(&mut text).unwrap();
        assert_eq!(text, "endpoint 5 not found\n", "{words:?}");
        if code.is_some() {
            errors.read_to_string(&mut text).unwrap();
            assert!(
                text.contains("no endpoint of --from, --to and --related-to exists"),
                "{text}"
            );
        } else {
            child.kill().unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), code, "{words:?}");
    }
    drop(monitors);
}
