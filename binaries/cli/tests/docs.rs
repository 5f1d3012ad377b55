// SPDX-License-Identifier: Apache-2.0

//! Commands that the documentation names exist.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use regex::Regex;

/// Words of commands in code: `skep policy explain`, without arguments and flags.
fn commands(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    let command =
        Regex::new(r"(?m)(?:`|^|-- |sudo |target/debug/)skep((?: [a-z][a-z0-9-]*)+)(?: --| [A-Z]|`|$)")
            .unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            commands(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).unwrap();
            let page = path.display().to_string();
            found.extend(
                command
                    .captures_iter(&text)
                    .map(|words| (words[1].trim().to_owned(), page.clone())),
            );
        }
    }
}

/// Commands on clusters are those of another program.
fn is_on_clusters(words: &str) -> bool {
    let line = skep_cluster::command();
    words
        .split(' ')
        .try_fold(&line, |command, word| command.find_subcommand(word))
        .is_some()
}

#[test]
fn documented_commands_exist() {
    let mut found = BTreeSet::new();
    commands(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs"),
        &mut found,
    );
    assert!(found.len() > 40, "{found:?}");
    found.retain(|(words, _)| {
        if is_on_clusters(words) {
            return false;
        }
        let mut skep = Command::new(env!("CARGO_BIN_EXE_skep"));
        !skep
            .args(words.split(' '))
            .arg("--help")
            .output()
            .unwrap()
            .status
            .success()
    });

    assert!(found.is_empty(), "{found:?}");
}
