// SPDX-License-Identifier: Apache-2.0

//! The pure logic of the programs, compiled for this host: each `host/*.c` is a program that includes headers of
//! `bpf/include`, prints the checks that failed, and exits with their number.

use std::{path::Path, process::Command};

fn run(name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host");
    let directory = tempfile::tempdir().expect("a folder for the program");
    let program = directory.path().join(name);

    let compiled = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include"))
        .arg("-o")
        .args([&program, &sources.join(format!("{name}.c"))])
        .output()
        .expect("a C compiler, `cc` or $CC");
    assert!(
        compiled.status.success(),
        "{name}.c does not compile for the host:\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );

    let ran = Command::new(&program)
        .output()
        .expect("the compiled program runs");
    assert!(
        ran.status.success(),
        "checks of {name}.c failed:\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn addresses_of_both_families() {
    run("addresses");
}

#[test]
fn rules_of_socket_load_balancing() {
    run("rules");
}

#[test]
fn states_of_connections() {
    run("conntrack");
}

#[test]
fn hashes_of_packets() {
    run("hash");
}

#[test]
fn rates_of_endpoints() {
    run("throttle");
}

#[test]
fn checksums() {
    run("checksums");
}
