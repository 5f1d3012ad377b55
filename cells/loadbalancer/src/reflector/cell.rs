// SPDX-License-Identifier: Apache-2.0

//! Cells of the sources.
//! Need: [`Writer`], and for Kubernetes a client, the pods of this node and the node's labels. Give nothing.

use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_k8s::selector::SelectorError;
use skep_k8s::slim::Labels;
use skep_k8s::{Api, Client, LocalPod};
use statedb::{Db, Table};

use super::config::{FileConfig, KubernetesConfig};
use super::document::{Format, UnknownFormat};
use super::file::{FileSource, FileState};
use super::ingest::Ingest;
use super::k8s::ApiSource;
use super::pods::{HostPorts, PodSource};
use crate::Writer;
use crate::convert::Rules;
use crate::types::Source;

/// All sources.
pub(crate) fn cell() -> Cell {
    Cell::module("loadbalancer-reflectors", "Sources of services").with(k8s()).with(file())
}

fn k8s() -> Cell {
    Cell::module("k8s-reflector", "Services of Kubernetes").config::<KubernetesConfig>().run(start_k8s).run(start_pods)
}

fn file() -> Cell {
    Cell::module("file-reflector", "Services of a state file").config::<FileConfig>().run(start_file)
}

/// Why a source can't start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Job(#[from] SpawnError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Selector(#[from] SelectorError),
    #[error(transparent)]
    Format(#[from] UnknownFormat),
}
