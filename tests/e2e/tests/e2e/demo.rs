// SPDX-License-Identifier: Apache-2.0

//! What `make demo` runs.

#[test]
fn everything_that_the_demo_checks_is_good() {
    let name = format!("demo-{}", std::process::id());
    let output = std::process::Command::new(skep_e2e::program("skep-lab"))
        .args(["--name", &name, "demo"])
        .output()
        .unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("\n85 checked, 0 failed"), "{text}");
    assert!(!skep_lab::plan::folder_of(&name).exists());
}
