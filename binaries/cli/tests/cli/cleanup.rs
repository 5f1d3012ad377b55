// SPDX-License-Identifier: Apache-2.0

//! `skep cleanup`, in a namespace of its own.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use skep_bpf_maps::{MapSizes, event::METRICS};
use skep_bpf_sys::testing::Node;

#[test]
fn state_is_removed_after_the_question() {
    let result = Node::run("cli-cleanup", |node| -> std::io::Result<()> {
        node.store()
            .provide(METRICS.spec(&MapSizes::default()).raw())
            .unwrap();
        let pin = node.bpf_root().join("tc/globals/cilium_metrics");
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("state/7");
        fs::create_dir_all(&state)?;
        let conf = folder.path().join("05-cilium.conflist");
        fs::write(&conf, "{}")?;
        let run = |options: &[&str], answer: &str| {
            let mut child = Command::new(env!("CARGO_BIN_EXE_skep"))
                .arg(format!("--bpf-root={}", node.bpf_root().display()))
                .arg("cleanup")
                .arg(format!("--state-dir={}", folder.path().display()))
                .arg(format!("--cni-conf={}", conf.display()))
                .args(options)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            child.stdin.take().unwrap().write_all(answer.as_bytes())?;
            let output = child.wait_with_output()?;
            assert!(output.status.success());
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&output.stdout).into_owned())
        };

        let asked = run(&[], "n\n")?;
        assert!(asked.starts_with("Warning: Destructive operation."), "{asked}");
        assert!(
            asked.contains("cilium_metrics\n") && asked.ends_with("(y/N): Nothing removed\n"),
            "{asked}"
        );
        assert!(pin.exists() && state.exists() && conf.exists());

        run(&["--bpf-state", "-f"], "")?;
        assert!(!pin.exists() && state.exists() && conf.exists());

        run(&[], "y\n")?;
        assert!(!state.exists() && !conf.exists());
        assert_eq!(run(&["--force"], "")?, "Nothing to remove\n");
        Ok(())
    });
    result.unwrap();
}
