// SPDX-License-Identifier: Apache-2.0

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;

use nix::unistd::Group;
use tokio_util::net::Listener;

use super::chain;
use crate::{BindError, Unix};

#[tokio::test]
async fn stale_socket_is_replaced_and_the_new_one_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    drop(StdListener::bind(&path).unwrap());

    let mut bound = Unix::new(&path).bind().unwrap();
    let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    bound.accept().await.unwrap();
    drop((client, bound));

    assert!(!path.exists());
}

#[tokio::test]
async fn socket_that_answers_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let first = Unix::new(&path).bind().unwrap();

    let error = Unix::new(&path).setting("socket-path").bind().unwrap_err();

    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "another process listens on {} (setting `socket-path`)",
            path.display()
        )
    );
    assert!(std::os::unix::net::UnixStream::connect(first.path()).is_ok());
}

// A process that hangs does not accept: its queue is full, and a connect would block.
#[tokio::test]
async fn socket_with_a_full_queue_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let _bound = Unix::new(&path).bind().unwrap();
    let mut waiting = Vec::new();
    loop {
        let connected = tokio::time::timeout(
            std::time::Duration::from_millis(100),
            tokio::net::UnixStream::connect(&path),
        )
        .await;
        match connected {
            Ok(Ok(stream)) => waiting.push(stream),
            _ => break,
        }
    }

    let error = Unix::new(&path).bind().unwrap_err();

    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
}

#[tokio::test]
async fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    std::fs::write(&path, "precious").unwrap();

    let error = Unix::new(&path).setting("socket-path").bind().unwrap_err();

    assert_eq!(
        error.to_string(),
        format!(
            "{} exists and is not a socket (setting `socket-path`)",
            path.display()
        )
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn socket_of_another_process_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let bound = Unix::new(&path).bind().unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = StdListener::bind(&path).unwrap();

    drop(bound);

    assert!(path.exists());
}

#[tokio::test]
async fn directories_are_created_and_the_mode_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    for (mode, name) in [(0o600, "a/b/private.sock"), (0o666, "a/b/open.sock")] {
        let path = folder.path().join(name);

        let _bound = Unix::new(&path).mode(mode).bind().unwrap();

        let found = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{name}");
    }
}

#[tokio::test]
async fn group_is_set_if_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let gid = |group: &str| {
        let bound = Unix::new(folder.path().join(group)).group(group).bind().unwrap();
        std::fs::metadata(bound.path()).unwrap().gid()
    };
    let daemon = Group::from_name("daemon").unwrap().expect("group daemon");

    assert_eq!(gid("daemon"), daemon.gid.as_raw());
    assert_eq!(
        gid("no-such-group"),
        std::fs::metadata(folder.path()).unwrap().gid()
    );
}

#[tokio::test]
async fn paths_that_are_too_long_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x".repeat(120));

    let error = Unix::new(&path).setting("socket-path").bind().unwrap_err();

    let text = chain(&error);
    let start = format!("cannot listen on {} (setting `socket-path`): ", path.display());
    assert!(
        text.starts_with(&start) && text.contains("name too long"),
        "{text}"
    );
}
