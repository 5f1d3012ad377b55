// SPDX-License-Identifier: Apache-2.0

//! `skep bpf` for features without maps on this node, and for the BPF file system.

use std::{fs, path::Path};

use clap::Subcommand;

use crate::{
    datapath,
    failure::{Failure, fatal, usage},
    maps::Pinned,
};

/// Commands on maps of features that a node may lack.
#[derive(Debug, Subcommand)]
pub(crate) enum FeatureCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
}

/// Commands on the map of authenticated pairs of identities.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum AuthCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
    /// Delete all entries. Not supported: identities do not authenticate each other here.
    Flush,
}

/// Commands on the map of VXLAN tunnel endpoints.
#[derive(Debug, Subcommand)]
pub(crate) enum VtepCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
    /// Write an entry. Not supported: there is no such map here.
    Update {
        /// Network, address of the tunnel endpoint, and MAC address.
        entry: Vec<String>,
    },
    /// Delete the entry of a network. Not supported: there is no such map here.
    Delete {
        /// Network.
        network: Vec<String>,
    },
}

/// Commands on hashes of templates of programs.
#[derive(Debug, Subcommand)]
pub(crate) enum HashCommand {
    /// List all hashes, with the endpoints of each.
    #[command(alias = "ls")]
    List,
    /// Show the header of a template.
    Get {
        /// Hash.
        sha: Option<String>,
    },
}

/// Commands on multicast groups.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Groups of this node.
    #[command(subcommand)]
    Group(MemberCommand),
    /// Subscribers of a group.
    #[command(subcommand)]
    Subscriber(MemberCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List groups or subscribers.
    #[command(alias = "ls")]
    List {
        /// Group, or `all`.
        group: Option<String>,
    },
    /// Add a group or a subscriber.
    Add {
        /// Group, and subscriber.
        addresses: Vec<String>,
    },
    /// Delete a group or a subscriber.
    Delete {
        /// Group, and subscriber.
        addresses: Vec<String>,
    },
}

/// Commands on maps of segment routing.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SegmentCommand {
    /// Egress policies.
    Policy,
    /// Segment ids.
    Sid,
    /// Mapping of VRFs.
    Vrf,
}

/// Commands on the BPF file system.
#[derive(Debug, Subcommand)]
pub(crate) enum FsCommand {
    /// Show how it is mounted.
    Show,
}

/// A feature with maps of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Feature {
    Config,
    EgressGateway,
    Hashes,
    Multicast,
    Srv6(SegmentCommand),
}

/// What a list says without the feature's map.
pub(crate) fn list(pinned: &Pinned, feature: Feature) -> Result<String, Failure> {
    match feature {
        Feature::EgressGateway => {
            eprintln!("Cannot find egress gateway bpf maps");
            Ok(String::new())
        }
        Feature::Hashes => Ok("Datapath SHA   Endpoint(s)\n".to_owned()),
        Feature::Config => Err(no_map(pinned, "cilium_runtime_config")),
        Feature::Multicast => Err(no_map(pinned, "cilium_mcast_group_outer_v4_map")),
        Feature::Srv6(SegmentCommand::Policy) => Err(no_map(pinned, "cilium_srv6_policy_v4")),
        Feature::Srv6(SegmentCommand::Sid) => Err(no_map(pinned, "cilium_srv6_sid")),
        Feature::Srv6(SegmentCommand::Vrf) => Err(no_map(pinned, "cilium_srv6_vrf_v4")),
    }
}

/// `skep bpf auth`.
pub(crate) fn authentication(pinned: &Pinned, command: AuthCommand) -> Result<String, Failure> {
    match command {
        AuthCommand::List => Ok(datapath::no_entries()),
        AuthCommand::Flush => Err(not_there(pinned, "flushing", "cilium_auth_map")),
    }
}

/// `skep bpf vtep`.
pub(crate) fn vtep(pinned: &Pinned, command: &VtepCommand) -> Result<String, Failure> {
    let action = match command {
        VtepCommand::List => "dumping",
        VtepCommand::Update { .. } => "updating",
        VtepCommand::Delete { .. } => "deleting",
    };
    Err(not_there(pinned, action, "cilium_vtep_map"))
}

/// The map of a feature that is off.
fn no_map(pinned: &Pinned, name: &str) -> Failure {
    not_there(pinned, "dumping", name)
}

fn not_there(pinned: &Pinned, action: &str, name: &str) -> Failure {
    Failure::Bare(format!(
        "error {action} contents of map: loading pinned map {}: no such file or directory",
        pinned.path(name)
    ))
}

/// Programs are not made from templates: no hash has one.
pub(crate) fn template(sha: Option<&str>) -> Failure {
    match sha {
        Some(sha) => fatal(format!("no template with the hash {sha}")),
        None => usage("bpf sha get", "Missing datapath SHA"),
    }
}

/// `skep bpf fs show`.
pub(crate) fn file_system(root: &Path) -> Result<String, Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| fatal(format!("cannot read /proc/self/mountinfo: {error}")))?;
    Ok(mount(&mounts, &root.display().to_string()))
}

/// The last mount at a path, by the lines of `mountinfo` (proc(5)).
fn mount(mounts: &str, root: &str) -> String {
    let found = mounts.lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        (left.get(4) == Some(&root) && left.len() > 5 && right.len() > 2).then_some((left, right))
    });
    let Some((left, right)) = found else {
        return "Mounted State:    false\n".to_owned();
    };
    let lines = [
        ("MountID", left[0].to_owned()),
        ("ParentID", left[1].to_owned()),
        ("Mounted State", "true".to_owned()),
        ("MountPoint", left[4].to_owned()),
        ("MountOptions", left[5].to_owned()),
        ("OptionFields", format!("[{}]", left[6..].join(" "))),
        ("FilesystemType", right[0].to_owned()),
        ("MountSource", right[1].to_owned()),
        ("SuperOptions", right[2].to_owned()),
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{:<18}{value}\n", format!("{name}:")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_shown_as_cilium_shows_them() {
        let mounts =
            "22 1 0:20 / /sys rw - sysfs sysfs rw\n379 488 0:32 / /sys/fs/bpf rw,relatime - bpf bpf rw\n";

        let expected = "MountID:          379\nParentID:         488\nMounted State:    true\n\
                        MountPoint:       /sys/fs/bpf\nMountOptions:     rw,relatime\nOptionFields:     []\n\
                        FilesystemType:   bpf\nMountSource:      bpf\nSuperOptions:     rw\n";
        assert_eq!(mount(mounts, "/sys/fs/bpf"), expected);
        assert_eq!(mount(mounts, "/bpf"), "Mounted State:    false\n");
    }
}
