// SPDX-License-Identifier: Apache-2.0

//! Logs of the lab's pods, and programs started in them, for the embedded API server.
//!
//! The containers of a pod share one process: each has the log of all.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde_json::Value;
use skep_k8s_apiserver::{ExecOptions, Execution, LogOptions, PodRuntime, PodRuntimeError};
use skep_lab_kubelet::Cri;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use crate::{
    cgroup, containerd,
    enter::Placement,
    paths::LabPaths,
    plan::{Cluster, Node},
    pod::Pod,
    process::{self, shell_code},
    terminal::Terminal,
};

/// Time between two reads of a log that is followed.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are read of a log at a time.
const CHUNK: usize = 64 * 1024;

/// The pods of a cluster as processes of this machine.
#[derive(Debug)]
pub(crate) struct Runtime {
    paths: LabPaths,
    nodes: Vec<Node>,
}

impl Runtime {
    pub(crate) fn new(paths: &LabPaths, cluster: &Cluster) -> Self {
        Self {
            paths: paths.clone(),
            nodes: cluster.nodes.clone(),
        }
    }

    /// A container of containerd.
    fn container(&self, pod: &Value, name: &str) -> Option<Container> {
        let node = self
            .nodes
            .iter()
            .find(|node| pod["spec"]["nodeName"] == node.name.as_str())?;
        let statuses = ["initContainerStatuses", "containerStatuses"];
        let mut statuses = statuses
            .into_iter()
            .filter_map(|field| pod["status"][field].as_array())
            .flatten();
        let status = statuses.find(|status| status["name"] == name)?;
        let folder = containerd::folder(&self.paths, node);
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        let logs = skep_lab_kubelet::logs(&folder, text("namespace"), text("name"), text("uid"));
        if !logs.exists() {
            return None;
        }
        let id = status["containerID"].as_str().unwrap_or_default();
        Some(Container {
            id: id.trim_start_matches("containerd://").to_owned(),
            name: name.to_owned(),
            logs,
            restarts: status["restartCount"]
                .as_u64()
                .unwrap_or_default()
                .try_into()
                .unwrap_or_default(),
            socket: containerd::socket(&self.paths, node),
            group: self.paths.node_cgroup(node).join("tools"),
        })
    }

    /// The control group and the log of a pod.
    fn place(&self, pod: &Pod) -> Result<(PathBuf, PathBuf), PodRuntimeError> {
        let node = self.nodes.iter().find(|node| node.name == pod.node);
        let node = node.ok_or_else(|| {
            PodRuntimeError::NotRunning(format!("pod {} does not have a node of this lab", pod.name))
        })?;
        let group = self.paths.node_cgroup(node).join("pods").join(pod.id());
        Ok((group, self.paths.log(&format!("{}-{}", node.name, pod.id()))))
    }
}

/// A container of containerd.
struct Container {
    id: String,
    name: String,
    logs: PathBuf,
    restarts: u32,
    socket: PathBuf,
    group: PathBuf,
}

impl Container {
    async fn process(&self) -> Option<u32> {
        cgroup::create(&self.group).ok()?;
        let cri = Cri::at(&self.socket).ok()?;
        cri.container_process(&self.id).await.ok()?
    }

    /// The log as the container wrote it: containerd writes time, stream and a letter before each line.
    async fn log(&self, options: &LogOptions) -> Result<BoxStream<'static, bytes::Bytes>, PodRuntimeError> {
        let missing = || PodRuntimeError::NotRunning(format!("container \"{}\" has no log yet", self.name));
        let run = match options.previous {
            true => self.restarts.checked_sub(1).ok_or_else(missing)?,
            false => self.restarts,
        };
        let path = self.logs.join(skep_lab_kubelet::log(&self.name, run));
        let text = tokio::fs::read_to_string(&path).await.map_err(|_| missing())?;
        let lines: Vec<&str> = text
            .lines()
            .filter_map(|line| line.splitn(4, ' ').nth(3))
            .collect();
        let skipped = options.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
        let mut text: String = lines[skipped..].iter().flat_map(|line| [line, "\n"]).collect();
        let mut end = options.limit.unwrap_or(text.len()).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Ok(stream::once(async { bytes::Bytes::from(text) }).boxed())
    }
}

pub(crate) fn previous(log: &Path) -> PathBuf {
    log.with_extension("previous.log")
}

#[async_trait]
impl PodRuntime for Runtime {
    async fn log(
        &self,
        pod: &Value,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, bytes::Bytes>, PodRuntimeError> {
        if let Some(container) = self.container(pod, &options.container) {
            return container.log(options).await;
        }
        let pod = Pod::read(pod);
        let (group, log) = self.place(&pod)?;
        let path = if options.previous { previous(&log) } else { log };
        let failed = |cause: io::Error| match cause.kind() {
            io::ErrorKind::NotFound if options.previous => PodRuntimeError::NotRunning(format!(
                "previous terminated container \"{}\" in pod \"{}\" not found",
                options.container, pod.name
            )),
            io::ErrorKind::NotFound => PodRuntimeError::NotRunning(format!(
                "container \"{}\" in pod \"{}\" is waiting to start: ContainerCreating",
                options.container, pod.name
            )),
            _ => PodRuntimeError::Io {
                what: format!("reading {}", path.display()),
                cause,
            },
        };
        let mut file = File::open(&path).await.map_err(failed)?;
        if let Some(lines) = options.tail {
            let start = tail(&mut file, lines).await.map_err(failed)?;
            file.seek(io::SeekFrom::Start(start)).await.map_err(failed)?;
        }
        let follow = (options.follow && !options.previous).then_some(group);
        let left = options.limit.unwrap_or(usize::MAX);
        Ok(stream::unfold((file, follow, left), read_on).boxed())
    }

    async fn exec(&self, pod: &Value, options: &ExecOptions) -> Result<Execution, PodRuntimeError> {
        let container = self.container(pod, &options.container);
        let pod = Pod::read(pod);
        let (group, process) = match container {
            Some(container) => (container.group.clone(), container.process().await),
            None => {
                let (group, _) = self.place(&pod)?;
                let process = cgroup::processes(&group).first().copied();
                (group, process.and_then(|pid| u32::try_from(pid).ok()))
            }
        };
        let beside = process.ok_or_else(|| {
            PodRuntimeError::NotRunning(format!(
                "container {} of pod {} is not running",
                options.container, pod.name
            ))
        })?;
        let placement = Placement {
            cgroup: Some(group),
            beside: Some(beside),
            terminal: options.tty,
            program: options.command.iter().map(Into::into).collect(),
            ..Placement::default()
        };
        if options.tty {
            return in_terminal(&placement, options.stdin).map_err(|cause| PodRuntimeError::Io {
                what: format!("starting a program in a terminal of pod {}", pod.name),
                cause,
            });
        }
        let pipe = |wanted: bool| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut child = process::placed(&placement)
            .stdin(pipe(options.stdin))
            .stdout(pipe(options.stdout))
            .stderr(pipe(options.stderr))
            .spawn()
            .map_err(|cause| PodRuntimeError::Io {
                what: format!("starting a program in pod {}", pod.name),
                cause,
            })?;
        Ok(Execution {
            stdin: child.stdin.take().map(|stdin| Box::pin(stdin) as _),
            stdout: child.stdout.take().map(|stdout| Box::pin(stdout) as _),
            stderr: child.stderr.take().map(|stderr| Box::pin(stderr) as _),
            resize: None,
            ended: Box::pin(async move { child.wait().await.map(shell_code) }),
        })
    }
}

/// Starts a program that has a terminal. When the client disconnects, the other end is closed, which ends the program.
fn in_terminal(placement: &Placement, has_input: bool) -> io::Result<Execution> {
    let terminal = Terminal::open()?;
    let mut child = {
        let end = || terminal.program.try_clone().map(Stdio::from);
        process::placed(placement)
            .env("TERM", "xterm")
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn()?
    };
    let parts = terminal.into_parts()?;
    Ok(Execution {
        stdin: has_input.then(|| Box::pin(parts.input) as _),
        stdout: Some(Box::pin(parts.output)),
        stderr: None,
        resize: Some(parts.resize),
        ended: Box::pin(async move { child.wait().await.map(shell_code) }),
    })
}

/// Offset of the last lines, by their number.
async fn tail(file: &mut File, lines: usize) -> io::Result<u64> {
    // The starts of the last lines that were seen, the oldest first.
    let mut starts = VecDeque::from([0]);
    let (mut at, mut buffer) = (0_u64, vec![0; CHUNK]);
    loop {
        let read = file.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        for (offset, byte) in (1..).zip(&buffer[..read]) {
            if *byte == b'\n' {
                starts.push_back(at + offset);
                if starts.len() > lines + 1 {
                    starts.pop_front();
                }
            }
        }
        at += u64::try_from(read).unwrap_or_default();
    }
    // A line break at the very end begins no line.
    if starts.back() == Some(&at) {
        starts.pop_back();
    } else if starts.len() > lines {
        starts.pop_front();
    }
    Ok(if lines == 0 {
        at
    } else {
        starts.front().copied().unwrap_or(at)
    })
}

/// The next part of a log; nothing at its end, or when the pod whose control group is followed has no process left.
async fn read_on(
    (mut file, follow, left): (File, Option<PathBuf>, usize),
) -> Option<(bytes::Bytes, (File, Option<PathBuf>, usize))> {
    let mut buffer = vec![0; CHUNK.min(left)];
    if buffer.is_empty() {
        return None;
    }
    loop {
        // Checked before the read, so that nothing written before the end is lost.
        let goes_on = follow
            .as_ref()
            .is_some_and(|group| !cgroup::processes(group).is_empty());
        match file.read(&mut buffer).await {
            Ok(0) if goes_on => tokio::time::sleep(LOOK).await,
            Ok(0) => return None,
            Ok(read) => {
                buffer.truncate(read);
                return Some((buffer.into(), (file, follow, left - read)));
            }
            Err(err) => {
                tracing::warn!(error = %err, "Cannot read log of pod");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tail_is_the_last_lines_whether_the_last_is_complete_or_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, lines, expected) in [
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\nc\n", 3, "a\nb\nc\n"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("a\nb\nc\n", 0, ""),
            ("a", 1, "a"),
            ("", 1, ""),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let mut open = File::open(file.path()).await.unwrap();
            let start = usize::try_from(tail(&mut open, lines).await.unwrap()).unwrap();
            assert_eq!(&text[start..], expected, "{lines} of {text:?}");
        }
    }
}
