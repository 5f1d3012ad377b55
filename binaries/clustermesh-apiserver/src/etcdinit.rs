// SPDX-License-Identifier: Apache-2.0

//! Initializes the data directory of the etcd beside the clustermesh-apiserver.
//!
//! Runs in an init container: empties the directory, starts etcd in it on a loopback address without TLS, creates
//! [users and roles](access), enables authentication, stops etcd. The etcd that starts next on the same directory
//! authenticates clients by the common name of their certificates. A second run starts over.

pub mod access;
mod directory;
mod error;
mod process;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use etcd_client::Client;

pub use self::error::EtcdInitError;
use self::process::EtcdProcess;
use skep_clustermesh_cli::line;

use crate::PROGRAM;

/// Initializes an etcd data directory: users, roles, authentication. Existing etcd data is deleted.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// Name of the etcd member.
    #[arg(
        long,
        env = "CILIUM_ETCD_CLUSTER_NAME",
        default_value = "clustermesh-apiserver"
    )]
    pub etcd_cluster_name: String,
    /// Initial cluster token of etcd: unique for each run of the pod.
    #[arg(
        long,
        env = "CILIUM_ETCD_INITIAL_CLUSTER_TOKEN",
        default_value = "clustermesh-apiserver"
    )]
    pub etcd_initial_cluster_token: String,
    /// Data directory of etcd. Existing etcd data is deleted.
    #[arg(long, env = "CILIUM_ETCD_DATA_DIR", default_value = "/var/run/etcd")]
    pub etcd_data_dir: PathBuf,
    /// Name of this cluster.
    #[arg(long, env = "CILIUM_CLUSTER_NAME", default_value = "default")]
    pub cluster_name: String,
    /// Timeout of the initialization.
    #[arg(long, env = "CILIUM_TIMEOUT", default_value = "2m", value_parser = line::duration)]
    pub timeout: Duration,
    /// Enable debug logging of etcd.
    #[arg(long, env = "CILIUM_DEBUG")]
    pub debug: bool,
    /// Path of the etcd binary.
    #[arg(long, env = "CILIUM_ETCD_BINARY", default_value = "/usr/bin/etcd")]
    pub etcd_binary: PathBuf,
    /// Loopback port of etcd during the initialization.
    #[arg(long, env = "CILIUM_ETCD_PORT", default_value_t = 2379)]
    pub etcd_port: u16,
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    match line::parse::<Options>(&format!("{PROGRAM} etcdinit"), args) {
        Ok(options) => run(&options).map_or_else(|error| line::failed(PROGRAM, &error), |()| 0),
        Err(code) => code,
    }
}

/// Initializes the data directory.
///
/// # Errors
///
/// See [`EtcdInitError`]. Etcd has ended in every case.
pub fn run(options: &Options) -> Result<(), EtcdInitError> {
    check_cluster_name(&options.cluster_name)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(EtcdInitError::Runtime)?
        .block_on(initialize(options))
}

/// Initializes the data directory, within the timeout.
async fn initialize(options: &Options) -> Result<(), EtcdInitError> {
    process::check_port_is_free(options.etcd_port).await?;
    directory::empty(&options.etcd_data_dir)?;
    let mut etcd = EtcdProcess::start(options)?;
    let work = async {
        let mut client = connect(options).await;
        access::grant(&mut client, &options.cluster_name).await
    };
    let done = tokio::select! {
        status = etcd.ended() => return Err(EtcdInitError::Ended(status)),
        done = tokio::time::timeout(options.timeout, work) => done,
    };
    // The data are complete on disk only when etcd has ended by itself.
    let stopped = etcd.stop().await;
    done.map_err(|_| EtcdInitError::Timeout(options.timeout))??;
    stopped
}

/// Waits until etcd has a leader.
async fn connect(options: &Options) -> Client {
    let address = format!("http://127.0.0.1:{}", options.etcd_port);
    loop {
        if let Ok(mut client) = Client::connect([&address], None).await
            && let Ok(status) = client.status().await
            && status.leader() != 0
        {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A name that could leave its place in a key or a user name is refused: lower case, digits, `-`, up to 32 characters.
fn check_cluster_name(name: &str) -> Result<(), EtcdInitError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let valid = (1..=32).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if valid {
        Ok(())
    } else {
        Err(EtcdInitError::ClusterName(name.to_owned()))
    }
}
