// SPDX-License-Identifier: Apache-2.0

//! The CNI plugins and their configuration on the host.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{error::InitError, say};

#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    /// The plugin of the agent, installed as cilium-cni.
    #[arg(long, value_name = "FILE", default_value = "/opt/cni/bin/cilium-cni")]
    pub(crate) plugin: PathBuf,
    /// The loopback plugin; a failure to install it is ignored.
    #[arg(long, value_name = "FILE", default_value = "/cni/loopback")]
    pub(crate) loopback: PathBuf,
    /// Where the host's root directory is mounted.
    #[arg(long, env = "HOST_PREFIX", value_name = "DIR", default_value = "/host")]
    pub(crate) host_prefix: PathBuf,
    /// Directory of CNI, which has bin. Default: opt/cni of the host.
    #[arg(long, env = "CNI_DIR", value_name = "DIR")]
    pub(crate) cni_dir: Option<PathBuf>,
    /// Replace an installed cilium-cni.
    #[arg(long, env = "OVERWRITE_CILIUM", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) overwrite_cilium: bool,
    /// Replace an installed loopback.
    #[arg(long, env = "OVERWRITE_LOOPBACK", value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) overwrite_loopback: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Directory of the agent's settings, one file each.
    #[arg(long, value_name = "DIR", default_value = "/tmp/cilium/config-map")]
    pub(crate) config_dir: PathBuf,
    /// Directory of CNI configurations.
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    pub(crate) conf_dir: PathBuf,
    /// The configuration is not the agent's.
    #[arg(long, env = "CILIUM_CUSTOM_CNI_CONF", value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) custom_cni_conf: bool,
}

pub(crate) fn install(args: &InstallArgs) -> Result<(), InitError> {
    let directory = args
        .cni_dir
        .clone()
        .unwrap_or_else(|| args.host_prefix.join("opt/cni"))
        .join("bin");
    fs::create_dir_all(&directory).map_err(InitError::path("make the directory", &directory))?;
    copy(&args.plugin, &directory.join("cilium-cni"), args.overwrite_cilium)?;
    let loopback = directory.join("loopback");
    if let Err(error) = copy(&args.loopback, &loopback, args.overwrite_loopback) {
        say(format_args!("Ignored: {error}"));
    }
    Ok(())
}

fn copy(source: &Path, target: &Path, overwrite: bool) -> Result<(), InitError> {
    if target.exists() && !overwrite {
        say(format_args!("{} is installed", target.display()));
        return Ok(());
    }
    say(format_args!("Installing {}", target.display()));
    let contents = fs::read(source).map_err(InitError::path("read", source))?;
    replace(target, &contents, 0o755)
}

/// Replaces a file at once: a runtime may run it, or read it, at any time.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), InitError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.new"));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| {
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(contents)?;
            file.sync_all()
        });
    let written = written.map_err(InitError::path("write", &temporary));
    let replaced =
        written.and_then(|()| fs::rename(&temporary, path).map_err(InitError::path("replace", path)));
    if replaced.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

/// Acts only if key `cni-uninstall` is true: a node whose agent restarts keeps its network.
pub(crate) fn uninstall(args: &UninstallArgs) -> Result<(), InitError> {
    let key = args.config_dir.join("cni-uninstall");
    let is_requested = match fs::read_to_string(&key) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        text => text.map_err(InitError::path("read", &key))?.trim() == "true",
    };
    if !is_requested || args.custom_cni_conf {
        say("The CNI configuration stays");
        return Ok(());
    }
    let entries = match fs::read_dir(&args.conf_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(InitError::path("list", &args.conf_dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(InitError::path("list", &args.conf_dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_own = name.contains("cilium") && (name.ends_with(".conf") || name.ends_with(".conflist"));
        if is_own && !entry.path().is_dir() {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file; fine if it is gone.
pub(crate) fn remove(path: &Path) -> Result<(), InitError> {
    say(format_args!("Removing {}", path.display()));
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(InitError::path("remove", path)),
    }
}
