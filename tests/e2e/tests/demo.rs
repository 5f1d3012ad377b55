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
    assert!(text.contains("\n25 checked, 0 failed"), "{text}");
    assert!(!skep_lab::plan::folder_of(&name).exists());
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let name = format!("interrupted-{}", std::process::id());
    let mut up = std::process::Command::new(skep_e2e::program("skep-lab"))
        .args(["--name", &name, "up", "--nodes", "8", "--agent"])
        .arg(skep_e2e::program("skep-agent"))
        .spawn()
        .unwrap();
    let folder = skep_lab::plan::folder_of(&name);
    while !folder.join("state.json").exists() {
        assert!(
            up.try_wait().unwrap().is_none(),
            "the lab was up or failed before it was interrupted"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }

    let interrupted = std::process::Command::new("kill")
        .args(["-INT", &up.id().to_string()])
        .status()
        .unwrap();

    assert!(interrupted.success());
    assert!(!up.wait().unwrap().success());
    assert!(!folder.exists());
    assert!(!skep_lab::machine::Site::of(&name).unwrap().cgroup.exists());
}

#[test]
fn down_finds_what_a_crashed_lab_left() {
    let name = format!("crashed-{}", std::process::id());
    let lab = |words: &[&str]| {
        std::process::Command::new(skep_e2e::program("skep-lab"))
            .args(["--name", &name])
            .args(words)
            .status()
            .unwrap()
    };
    assert!(lab(&["up", "--nodes", "1"]).success());
    let supervisor = skep_lab::state::State::read(&name).unwrap().supervisor;
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &supervisor.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());

    assert!(lab(&["down"]).success());

    assert!(!skep_lab::plan::folder_of(&name).exists());
    assert!(!skep_lab::machine::Site::of(&name).unwrap().cgroup.exists());
}
