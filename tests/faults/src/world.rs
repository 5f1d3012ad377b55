// SPDX-License-Identifier: Apache-2.0

//! The world of one test, and the commands in it.

use std::{
    error::Error,
    future::Future,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use skep_bpf_sys::testing::{Node, slowness};
use skep_e2e::program;

use crate::{calls, calls_udp, privileges};

/// What tests return; any error fails them.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a condition may take to come true.
pub fn patience() -> Duration {
    Duration::from_secs(20) * slowness()
}

/// Runs a test in a world with the addresses 10.244.0.1, 10.244.0.2 and fd00::1.
///
/// # Panics
/// If the test fails.
pub fn on_node<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    let result = Node::run(name, |node| {
        for address in ["10.244.0.1", "10.244.0.2", "fd00::1"] {
            node.add_address(address.parse()?)?;
        }
        let world = World {
            bpf_root: node.bpf_root(),
            cgroup: node.cgroup_root().to_owned(),
            directory: node.directory().to_owned(),
        };
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?
            .block_on(test(world))
    });
    if let Err(error) = result {
        panic!("{}", chain(&*error));
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

#[derive(Debug, Clone)]
pub struct World {
    /// Root of the BPF file system.
    pub bpf_root: PathBuf,
    /// The control group that programs attach to.
    pub cgroup: PathBuf,
    /// Files of the test; removed with it.
    pub directory: PathBuf,
}

impl World {
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("agent.sock")
    }

    #[must_use]
    pub fn shell_socket(&self) -> PathBuf {
        self.directory.join("shell.sock")
    }

    /// Changes the owner of the files of the world, and of its BPF file system, to the user that
    /// [`crate::Agent::with_capabilities`] runs agents as.
    pub fn give_to_nobody(&self) -> Outcome {
        for path in [&self.directory, &self.bpf_root] {
            std::os::unix::fs::chown(path, Some(privileges::NOBODY), Some(privileges::NOBODY))?;
        }
        Ok(())
    }

    /// Runs `skep`; what it prints, its errors too.
    ///
    /// # Errors
    /// When the program does not run.
    pub fn skep(&self, words: &[&str]) -> Outcome<String> {
        let output = Command::new(program("skep"))
            .arg(format!("--host=unix://{}", self.socket().display()))
            .arg(format!("--shell-sock-path={}", self.shell_socket().display()))
            .arg(format!("--bpf-root={}", self.bpf_root.display()))
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Waits until what `look` finds is `good`; returns it.
    ///
    /// # Errors
    /// When that takes longer than 20 s; the error has what was found last.
    pub async fn wait(
        &self,
        what: &str,
        look: impl Fn() -> Outcome<String>,
        good: impl Fn(&str) -> bool,
    ) -> Outcome<String> {
        let deadline = Instant::now() + patience();
        loop {
            let found = look()?;
            if good(&found) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(format!("not in {} s: {what}; last:\n{found}", patience().as_secs()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a service answers by TCP and UDP: its entry may be in the maps before its backends are.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn served(&self, to: &str) -> Outcome {
        let address = to.parse()?;
        let look = || Ok(format!("TCP {}, UDP {}", calls(address), calls_udp(address)));
        self.wait(to, look, |found| !found.contains("false")).await?;
        Ok(())
    }

    /// Waits until a command of the agent's shell prints what is `good`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn shell_until(&self, command: &[&str], good: impl Fn(&str) -> bool) -> Outcome<String> {
        let words: Vec<&str> = std::iter::once("shell").chain(command.iter().copied()).collect();
        self.wait(&command.join(" "), || self.skep(&words), good).await
    }

    /// Waits until the rows of the table of frontends, without its header, are `good`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn frontends_until(&self, good: impl Fn(&str) -> bool) -> Outcome<String> {
        let rows = || {
            let text = self.skep(&["shell", "db/show", "frontends"])?;
            Ok(text
                .split_once('\n')
                .map_or(String::new(), |(_, rows)| rows.to_owned()))
        };
        self.wait("frontends", rows, good).await
    }

    /// Waits until the health of all modules is `good`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn health_until(&self, good: impl Fn(&str) -> bool) -> Outcome<String> {
        self.shell_until(&["db/show", "health"], good).await
    }

    /// What is in the service maps.
    pub fn maps(&self) -> Outcome<String> {
        self.skep(&["bpf", "lb", "list"])
    }

    /// Waits until the service maps are `good`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn maps_until(&self, good: impl Fn(&str) -> bool) -> Outcome<String> {
        self.wait("maps", || self.maps(), good).await
    }
}
