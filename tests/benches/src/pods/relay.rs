// SPDX-License-Identifier: Apache-2.0

//! A socket in front of the agent's, to see how long its answers take.

use std::{
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

pub(super) struct Relay {
    pub(super) path: PathBuf,
    taken: Arc<Mutex<Duration>>,
}

impl Relay {
    /// Listens at `path` from now on.
    pub(super) fn start(agent: &Path, path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let (agent, taken) = (agent.to_owned(), Arc::new(Mutex::new(Duration::ZERO)));
        let sum = taken.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let begun = Instant::now();
                let _ = pass(stream, &agent, || *sum.lock() += begun.elapsed());
            }
        });
        Ok(Self {
            path: path.to_owned(),
            taken,
        })
    }

    /// The sum of all answers since the last call.
    pub(super) fn take(&self) -> Duration {
        std::mem::take(&mut *self.taken.lock())
    }
}

/// One connection: a request and its answer.
fn pass(client: UnixStream, agent: &Path, done: impl FnOnce()) -> io::Result<()> {
    let server = UnixStream::connect(agent)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let request = std::thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut from, mut to) = (&server, &client);
    let copied = io::copy(&mut from, &mut to);
    done();
    client.shutdown(Shutdown::Both)?;
    let _ = request.join();
    copied.map(drop)
}
