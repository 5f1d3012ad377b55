// SPDX-License-Identifier: Apache-2.0

//! Waits for what another container or the host prepares.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{error::InitError, say};

const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or socket.
    pub(crate) path: PathBuf,
    /// Seconds to wait at most. Default: without end.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), InitError> {
    let start = Instant::now();
    let timeout = args.timeout.map(Duration::from_secs);
    let mut waits = false;
    while !is_ready(&args.path) {
        if let Some(timeout) = timeout.filter(|timeout| start.elapsed() >= *timeout) {
            let path = args.path.clone();
            return Err(InitError::Timeout { path, timeout });
        }
        if !waits {
            say(format_args!("Waiting for {}", args.path.display()));
            waits = true;
        }
        let left = timeout.map_or(POLL, |timeout| timeout.saturating_sub(start.elapsed()));
        sleep(POLL.min(left));
    }
    Ok(())
}

fn is_ready(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() > 0)
}
