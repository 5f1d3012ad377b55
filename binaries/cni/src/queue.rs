// SPDX-License-Identifier: Apache-2.0

//! Deletion of endpoints, by the agent, or by files that it finds when it starts.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::EndpointBatchDeleteRequest;

use crate::{
    agent::{self, explain},
    error::plain,
    link::sha256,
    log::Log,
};

const FOLDER: &str = "/var/run/cilium/deleteQueue";
const LOCK: &str = "lockfile";
/// Entries of the folder, the lock among them.
const MOST: usize = 256;
/// How long an agent that listens, and the lock, may take: runtimes wait for little longer.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Pauses while the agent is starting.
const STARTING: (usize, Duration) = (3, Duration::from_secs(5));
const POLL: Duration = Duration::from_millis(50);

pub(crate) enum Outcome {
    Deleted,
    Queued,
    /// The agent answered with an error.
    Refused(String),
}

pub(crate) struct Deleter<'a> {
    log: &'a Log,
}

impl<'a> Deleter<'a> {
    pub(crate) fn new(log: &'a Log) -> Self {
        Self { log }
    }

    /// Deletes the endpoints of a container. The error is text: neither the agent nor the queue took the request.
    pub(crate) fn delete(&self, container: &str) -> Result<Outcome, String> {
        let request = EndpointBatchDeleteRequest {
            container_id: container.to_owned(),
        };
        let client = self.connect();
        if let Some(outcome) = client.as_ref().and_then(|client| ask(client, &request)) {
            return Ok(outcome);
        }
        // While the lock is held, no agent reads the queue: one that has done so answers now.
        let folder = Path::new(FOLDER);
        let _lock = lock(folder)?;
        let client = client.or_else(|| self.connect());
        if let Some(outcome) = client.and_then(|client| ask(&client, &request)) {
            return Ok(outcome);
        }
        let req = format!("&{{ContainerID:{container}}}");
        self.log
            .info("Queueing endpoint batch deletion request", &[("req", &req)]);
        let path = write(folder, &request)?;
        let path = path.display().to_string();
        self.log
            .info("Wrote queued deletion file", &[("file-path", &path)]);
        Ok(Outcome::Queued)
    }

    /// The agent, if it listens or does so soon.
    fn connect(&self) -> Option<Client> {
        for _ in 0..STARTING.0 {
            if !is_starting() {
                break;
            }
            let message =
                "Agent is starting up, will retry to connect to the agent socket again in 5 seconds";
            self.log.info(message, &[]);
            std::thread::sleep(STARTING.1);
        }
        agent::connect(PATIENCE).ok()
    }
}

/// The folder of the socket exists, the socket does not.
fn is_starting() -> bool {
    let socket = agent::socket();
    !socket.exists() && socket.parent().is_some_and(Path::is_dir)
}

/// Asks the agent; `None` if the request is to be queued.
fn ask(client: &Client, request: &EndpointBatchDeleteRequest) -> Option<Outcome> {
    match client.delete_container(request) {
        Ok(()) => Some(Outcome::Deleted),
        Err(ClientError::Refused { status: 503, .. }) => None,
        Err(error @ ClientError::Refused { .. }) => Some(Outcome::Refused(explain(&error, "delete"))),
        Err(_) => None,
    }
}

/// Takes the lock of the queue, shared with other plugins; the agent's excludes all. It is the open file's, as Go's is:
/// `flock(2)` would not see it.
fn lock(folder: &Path) -> Result<File, String> {
    fs::create_dir_all(folder).map_err(|error| {
        format!(
            "failed to create deletion queue directory {}: {}",
            folder.display(),
            plain(&error)
        )
    })?;
    let path = folder.join(LOCK);
    let failed = |cause: String| format!("failed to acquire lock: {cause}");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| failed(plain(&error)))?;
    let whole = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)) {
            Ok(_) => return Ok(file),
            Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(failed("context deadline exceeded".to_owned())),
            Err(error) => return Err(failed(plain(&error.into()))),
        }
    }
}

fn write(folder: &Path, request: &EndpointBatchDeleteRequest) -> Result<PathBuf, String> {
    let failed = |error: io::Error| format!("failed to write deletion queue file: {}", plain(&error));
    if fs::read_dir(folder).map_err(failed)?.count() > MOST {
        return Err(format!(
            "deletion queue directory {} has too many entries; aborting",
            folder.display()
        ));
    }
    let content = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
    let path = folder.join(format!("{}.delete", sha256(&content)));
    fs::write(&path, content).map_err(failed)?;
    Ok(path)
}
