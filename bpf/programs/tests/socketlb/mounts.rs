// SPDX-License-Identifier: Apache-2.0

//! Finding and mounting file systems, in mount namespaces of their own.

use std::{fs, path::Path};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use skep_bpf_sys::{
    mount::{BPF_ROOT, BPF_ROOT_FALLBACK, CGROUP_ROOT_FALLBACK, bpffs, cgroup2},
    testing::Node,
};

use crate::world::Outcome;

fn run(name: &str, test: impl FnOnce(&Node) -> Outcome + Send) {
    if let Err(error) = Node::run(name, test) {
        panic!("{error}: {:?}", error.source());
    }
}

fn mount_at(kind: &str, path: &Path) -> Outcome {
    Ok(mount(kind, path, kind, MountFlags::empty(), None)?)
}

#[test]
fn the_bpf_file_system_is_mounted_where_nothing_is() {
    run("bpffs", |node| {
        let root = node.directory().join("a/b");

        assert_eq!(bpffs(&root)?, root);
        fs::create_dir(root.join("tc"))?;
        assert_eq!(bpffs(&root)?, root);
        // A directory inside will do.
        assert_eq!(bpffs(&root.join("tc"))?, root.join("tc"));
        assert!(root.join("tc").exists(), "mounted only once");
        Ok(())
    });
}

#[test]
fn stacked_and_foreign_file_systems_are_refused() {
    run("stacked", |node| {
        let root = node.directory().join("stacked");
        fs::create_dir(&root)?;
        mount_at("bpf", &root)?;
        mount_at("bpf", &root)?;
        let expected = format!("bpf-root: 2 file systems are mounted at {}", root.display());
        assert_eq!(bpffs(&root).unwrap_err().to_string(), expected);

        let root = node.directory().join("foreign");
        fs::create_dir(&root)?;
        mount_at("tmpfs", &root)?;
        let expected = format!("bpf-root: {} is a tmpfs file system, not bpf", root.display());
        assert_eq!(bpffs(&root).unwrap_err().to_string(), expected);
        Ok(())
    });
}

#[test]
fn the_default_root_has_a_fallback() {
    run("fallback", |_node| {
        // Only this thread's mount namespace sees these.
        mount_at("tmpfs", Path::new("/run"))?;
        while unmount(BPF_ROOT, UnmountFlags::DETACH).is_ok() {}
        mount_at("tmpfs", Path::new(BPF_ROOT))?;

        assert_eq!(bpffs(Path::new(BPF_ROOT))?, Path::new(BPF_ROOT_FALLBACK));
        assert_eq!(bpffs(Path::new(BPF_ROOT))?, Path::new(BPF_ROOT_FALLBACK));
        Ok(())
    });
}

#[test]
fn cgroup2_is_found_or_mounted() {
    run("cgroup", |node| {
        let chosen = node.directory().join("cgroup");
        assert_eq!(cgroup2(Some(&chosen))?, chosen);
        assert!(chosen.join("cgroup.procs").exists());
        assert_eq!(cgroup2(Some(node.cgroup_root()))?, node.cgroup_root());

        // Nowhere to be found: mounted beside.
        mount_at("tmpfs", Path::new("/run"))?;
        mount_at("tmpfs", Path::new("/sys/fs/cgroup"))?;
        assert_eq!(cgroup2(None)?, Path::new(CGROUP_ROOT_FALLBACK));
        assert!(Path::new(CGROUP_ROOT_FALLBACK).join("cgroup.procs").exists());

        // Version 2 alone.
        fs::create_dir("/sys/fs/cgroup/unified")?;
        mount_at("cgroup2", Path::new("/sys/fs/cgroup/unified"))?;
        assert_eq!(cgroup2(None)?, Path::new("/sys/fs/cgroup/unified"));
        Ok(())
    });
}
