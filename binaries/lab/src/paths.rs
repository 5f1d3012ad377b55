// SPDX-License-Identifier: Apache-2.0

//! Where a lab is on this machine: folders, logs, control groups.

use std::path::PathBuf;

use crate::{
    cgroup::{self, CgroupError},
    plan::{self, Node},
};

/// Paths of a lab on this machine.
#[derive(Debug, Clone)]
pub struct LabPaths {
    pub name: String,
    pub folder: PathBuf,
    pub cgroup: PathBuf,
}

impl LabPaths {
    /// The site of `lab` on this machine.
    pub fn of(lab: &str) -> Result<Self, CgroupError> {
        Ok(Self {
            name: lab.to_owned(),
            folder: plan::folder_of(lab),
            cgroup: cgroup::root()?.join(plan::cgroup_of(lab)),
        })
    }

    /// Log of the process called `name`.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    /// Control group of a node: its agent, its pods, and what users start there are below it.
    #[must_use]
    pub fn node_cgroup(&self, node: &Node) -> PathBuf {
        self.cgroup.join(&node.name)
    }

    /// Folder with the files of a pod's volumes.
    #[must_use]
    pub fn volumes(&self, node: &Node, pod: &str) -> PathBuf {
        self.folder.join("volumes").join(format!("{}-{pod}", node.name))
    }

    /// Creates a control group of the lab, and returns it.
    pub(crate) fn group(&self, path: PathBuf) -> Result<PathBuf, CgroupError> {
        cgroup::create(&path)?;
        Ok(path)
    }
}
