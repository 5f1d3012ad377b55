// SPDX-License-Identifier: Apache-2.0

//! The agent as a process.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;
use skep_bpf_sys::testing::{CallWatch, Calls, slowness};
use skep_e2e::program;

use crate::{Api, Outcome, World, patience, privileges};

/// A running agent, killed with this value.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    log: PathBuf,
}

#[derive(Debug)]
pub struct Exit {
    /// Exit code; `None` for a signal.
    pub code: Option<i32>,
    pub log: String,
}

impl Agent {
    /// Starts an agent with the world's BPF file system, control group and sockets, with small maps, and with
    /// `flags`, which win.
    pub fn start(world: &World, flags: &[&str]) -> Outcome<Self> {
        let mut all = vec![
            format!("--bpf-root={}", world.bpf_root.display()),
            format!("--cgroup-root={}", world.cgroup.display()),
            format!("--socket-path={}", world.socket().display()),
            format!("--shell-sock-path={}", world.shell_socket().display()),
            format!(
                "--monitor-socket-path={}",
                world.directory.join("monitor.sock").display()
            ),
            format!(
                "--health-history-file={}",
                world.directory.join("health-history.log").display()
            ),
            format!("--state-dir={}", world.directory.join("run").display()),
            "--k8s-node-name=here".to_owned(),
            // No pod of the tests has an endpoint.
            "--ipam=delegated-plugin".to_owned(),
            "--local-router-ipv4=10.200.0.1".to_owned(),
            "--local-router-ipv6=fd00:200::1".to_owned(),
            "--enable-endpoint-health-checking=false".to_owned(),
            "--kube-proxy-replacement=true".to_owned(),
            "--bpf-lb-map-max=1024".to_owned(),
            "--bpf-sock-rev-map-max=1024".to_owned(),
            "--lb-retry-backoff-min=100ms".to_owned(),
            "--lb-retry-backoff-max=500ms".to_owned(),
        ];
        for flag in flags {
            let name = flag.split('=').next().unwrap_or_default();
            all.retain(|known| known.split('=').next() != Some(name));
            all.push((*flag).to_owned());
        }
        Self::start_bare(world, &all)
    }

    /// Starts an agent with these flags and no others.
    pub fn start_bare(world: &World, flags: &[String]) -> Outcome<Self> {
        let log = world.directory.join(format!("agent-{}.log", serial()));
        let file = File::create(&log)?;
        // By descriptor: whoever starts it may not be allowed into the directory it is in.
        let agent = File::open(program("skep-agent"))?;
        // A child of the test's thread: born in its namespaces and control group.
        let child = Command::new(format!("/proc/self/fd/{}", agent.as_raw_fd()))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Starts an agent that follows `api`, and waits until it is well.
    pub async fn well(world: &World, api: &Api, flags: &[&str]) -> Outcome<Self> {
        let mut agent = Self::following(world, api, flags)?;
        agent.wait_well(world).await?;
        Ok(agent)
    }

    /// Starts an agent that follows `api`.
    pub fn following(world: &World, api: &Api, flags: &[&str]) -> Outcome<Self> {
        let urls = format!("--k8s-api-server-urls={}", api.url());
        let all: Vec<&str> = flags.iter().copied().chain([urls.as_str()]).collect();
        Self::start(world, &all)
    }

    /// Starts an agent that follows `api`, and whose writes to maps are watched from the first one on.
    pub fn watched(world: &World, api: &Api, flags: &[&str]) -> Outcome<(Self, CallWatch)> {
        Self::watched_at(Calls::Writes, world, api, flags)
    }

    /// Starts an agent that follows `api`, and whose calls of a kind are watched.
    pub fn watched_at(calls: Calls, world: &World, api: &Api, flags: &[&str]) -> Outcome<(Self, CallWatch)> {
        let (agent, watch) = CallWatch::start(calls, || Self::following(world, api, flags))?;
        Ok((agent?, watch))
    }

    /// Starts an agent that follows `api` as a user without privileges but these capabilities. The world must be
    /// [given](World::give_to_nobody) to that user.
    pub fn with_capabilities(
        world: &World,
        api: &Api,
        flags: &[&str],
        capabilities: CapabilitySet,
    ) -> Outcome<Self> {
        privileges::reduced(capabilities, || Self::following(world, api, flags))?
    }

    /// Waits until it says that it is well.
    ///
    /// # Errors
    /// When it ends before, or does not get well; with its log.
    pub async fn wait_well(&mut self, world: &World) -> Outcome {
        let deadline = Instant::now() + patience();
        loop {
            let said = world.skep(&["status", "--brief"])?;
            if said == "OK\n" {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the agent ended with {status}:\n{}", self.log()).into());
            }
            if Instant::now() > deadline {
                return Err(format!("the agent is not well: {said}\n{}", self.log()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it, without a chance to clean up.
    pub fn kill(mut self) -> Outcome {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("the agent ended by itself with {status}:\n{}", self.log()).into());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it runs on for 30 s: machines may be busy.
    pub async fn wait_exit(mut self) -> Outcome<Exit> {
        let deadline = Instant::now() + Duration::from_secs(30) * slowness();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Exit {
                    code: status.code(),
                    log: self.log(),
                });
            }
            if Instant::now() > deadline {
                return Err(format!("the agent runs on:\n{}", self.log()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Distinguishes the logs of one test.
fn serial() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
