// SPDX-License-Identifier: Apache-2.0

//! Reverse path filtering, which drops packets of pods that the datapath routes around the kernel's table.
//!
//! systemd sets it for all interfaces, also for those that come later. A file with a name that sorts behind all others
//! overrides that at boot; here the settings are also written at once, so that no unit has to be restarted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{cni::replace, error::InitError, mounts::Host, say};

/// A leading `-` ignores failures. `all` counts as well: the kernel takes the maximum.
const CONTENTS: &str = "\
# Written by skep-init: the datapath of Kubernetes pods works without reverse path filtering.
-net.ipv4.conf.lxc*.rp_filter = 0
-net.ipv4.conf.cilium_*.rp_filter = 0
net.ipv4.conf.all.rp_filter = 0
";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the file.
    #[arg(long, value_name = "DIR", default_value = "/etc/sysctl.d/")]
    pub(crate) sysctl_conf_dir: PathBuf,
    /// Name of the file.
    #[arg(long, value_name = "NAME", default_value = "99-zzz-override_cilium.conf")]
    pub(crate) sysctl_config_file: PathBuf,
    /// Directory of the settings.
    #[arg(long, value_name = "DIR", default_value = "/proc/sys")]
    pub(crate) procfs_sys: PathBuf,
    #[command(flatten)]
    pub(crate) host: Host,
}

pub(crate) fn run(args: &Args) -> Result<(), InitError> {
    args.host.enter()?;
    let path = args.sysctl_conf_dir.join(&args.sysctl_config_file);
    if fs::read_to_string(&path).is_ok_and(|found| found == CONTENTS) {
        say(format_args!("{} is up to date", path.display()));
    } else {
        say(format_args!("Writing {}", path.display()));
        fs::create_dir_all(&args.sysctl_conf_dir)
            .map_err(InitError::path("make the directory", &args.sysctl_conf_dir))?;
        replace(&path, CONTENTS.as_bytes(), 0o644)?;
    }
    let interfaces = args.procfs_sys.join("net/ipv4/conf");
    for entry in fs::read_dir(&interfaces).map_err(InitError::path("list", &interfaces))? {
        let entry = entry.map_err(InitError::path("list", &interfaces))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == "all" || name.starts_with("lxc") || name.starts_with("cilium_") {
            disable(&entry.path().join("rp_filter"))?;
        }
    }
    Ok(())
}

fn disable(path: &Path) -> Result<(), InitError> {
    match fs::read_to_string(path) {
        Ok(value) if value.trim() == "0" => Ok(()),
        // The interface is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(InitError::path("read", path)(error)),
        Ok(_) => {
            say(format_args!("Setting {} to 0", path.display()));
            fs::write(path, "0").map_err(InitError::path("write", path))
        }
    }
}
