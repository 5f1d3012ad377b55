// SPDX-License-Identifier: Apache-2.0

//! The program that `docs/embedding.md` shows, and `README.md` in part.

use std::process::Command;

const SOURCE: &str = include_str!("../../../../cells/loadbalancer/reconciler/examples/frontends.rs");
const PAGE: &str = include_str!("../../../../docs/embedding.md");
const README: &str = include_str!("../../../../README.md");
const SERVICES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/services.yaml");

#[test]
fn the_page_shows_the_program_as_it_is() {
    let program = SOURCE
        .split_once("\n\nuse std")
        .map(|(_, rest)| format!("use std{rest}"));

    assert!(PAGE.contains(&format!("```rust\n{}```", program.unwrap())));
}

#[test]
fn the_readme_shows_the_beginning_of_the_program() {
    let shown = README
        .split_once("```rust\n")
        .and_then(|(_, rest)| rest.split_once("```"));

    let (shown, _) = shown.unwrap();
    assert!(shown.starts_with("fn main()") && SOURCE.contains(shown));
}

#[test]
fn the_program_prints_what_the_page_says() {
    let output = Command::new(skep_e2e::program("examples/frontends"))
        .args(["--lb-state-file", SERVICES])
        .output()
        .unwrap();

    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!printed.is_empty() && PAGE.contains(&*printed), "{printed}");
}
