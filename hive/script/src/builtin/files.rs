// SPDX-License-Identifier: Apache-2.0

//! Files and directories: `cat cd chmod cp exists mkdir mv rm symlink`.

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec, function};

type Run = Result<Outcome, CommandError>;

pub(super) fn commands() -> [CommandHandle; 9] {
    [
        cat(),
        function(
            Spec::new("cd", "Change the current directory").args("dir"),
            run_cd,
        ),
        function(
            Spec::new("chmod", "Change the permissions of files")
                .args("perm path...")
                .detail(
                    "Permissions are numbers with Go's prefixes: 0644 and 0o644 are octal, 420 is decimal.",
                ),
            run_chmod,
        ),
        function(
            Spec::new("cp", "Copy files")
                .args("src... dst")
                .detail("A source may be 'stdout' or 'stderr', which copies that buffer."),
            run_cp,
        ),
        function(
            Spec::new("exists", "Check that files exist")
                .args("path...")
                .flag(Flag::bool("readonly", "Fail for files that can be written"))
                .flag(Flag::bool("exec", "Fail for files that cannot be executed")),
            run_exists,
        ),
        function(
            Spec::new("mkdir", "Create directories with their parents").args("path..."),
            run_mkdir,
        ),
        function(
            Spec::new("mv", "Rename a file or directory").args("old new"),
            run_mv,
        ),
        function(
            Spec::new("rm", "Remove files and directories recursively")
                .args("path...")
                .detail("Missing paths are ignored."),
            run_rm,
        ),
        function(
            Spec::new("symlink", "Create a symbolic link").args("path -> target"),
            run_symlink,
        ),
    ]
}

/// `cat`, which is also in the shell.
pub(super) fn cat() -> CommandHandle {
    function(
        Spec::new("cat", "Write files to the stdout buffer").args("files..."),
        run_cat,
    )
}

fn run_cat(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    if inv.args().is_empty() {
        return Err(CommandError::usage(""));
    }
    let mut stdout = String::new();
    for file in inv.args() {
        match cx.read_file(file) {
            Ok(text) => stdout.push_str(&text),
            Err(error) => {
                let output = Output {
                    stdout,
                    stderr: String::new(),
                };
                return Err(CommandError::io("open", cx.path(file), &error).with_output(output));
            }
        }
    }
    Ok(Outcome::stdout(stdout))
}

fn run_cd(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    let [dir] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let dir = cx.path(dir);
    if let Err(error) = fs::metadata(&dir) {
        let cause = CommandError::io("stat", &dir, &error);
        return Err(CommandError::new(format_args!(
            "Chdir {}: {cause}",
            dir.display()
        )));
    }
    cx.environment_mut().set("PWD", dir.to_string_lossy());
    cx.state.cwd = dir;
    Ok(Outcome::Silent)
}

fn run_chmod(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    let [mode, paths @ ..] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    if paths.is_empty() {
        return Err(CommandError::usage(""));
    }
    let bits = crate::text::parse_int(mode)
        .ok()
        .and_then(|bits| u32::try_from(bits).ok())
        .filter(|bits| bits & 0o777 == *bits)
        .ok_or_else(|| CommandError::new(format_args!("invalid mode: {mode}")))?;
    for path in paths {
        let path = cx.path(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(bits))
            .map_err(|error| CommandError::io("chmod", &path, &error))?;
    }
    Ok(Outcome::Silent)
}

fn run_cp(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    let [sources @ .., target] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    if sources.is_empty() {
        return Err(CommandError::usage(""));
    }
    let target = cx.path(target);
    let into_directory = target.is_dir();
    if sources.len() > 1 && !into_directory {
        return Err(CommandError::new(format_args!(
            "cp {}: destination is not a directory",
            target.display()
        )));
    }
    for source in sources {
        let (source, content, mode) = read_source(cx, source)?;
        let target = match source.file_name() {
            Some(name) if into_directory => target.join(name),
            _ => target.clone(),
        };
        write_with_mode(&target, &content, mode)
            .map_err(|error| CommandError::io("open", &target, &error))?;
    }
    Ok(Outcome::Silent)
}

/// Path, content and permissions of a source of `cp`.
fn read_source(cx: &Context<'_>, source: &str) -> Result<(PathBuf, Vec<u8>, u32), CommandError> {
    match source {
        "stdout" => Ok((PathBuf::from(source), cx.stdout().into(), 0o666)),
        "stderr" => Ok((PathBuf::from(source), cx.stderr().into(), 0o666)),
        _ => {
            let path = cx.path(source);
            let metadata = fs::metadata(&path).map_err(|error| CommandError::io("stat", &path, &error))?;
            let content = fs::read(&path).map_err(|error| CommandError::io("open", &path, &error))?;
            Ok((path, content, metadata.permissions().mode() & 0o777))
        }
    }
}

fn write_with_mode(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    io::Write::write_all(&mut file, content)
}

fn run_exists(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    if inv.args().is_empty() {
        return Err(CommandError::usage(""));
    }
    for path in inv.args() {
        let path = cx.path(path);
        let metadata = fs::metadata(&path).map_err(|error| CommandError::io("stat", &path, &error))?;
        let mode = metadata.permissions().mode();
        if inv.bool("readonly") && mode & 0o222 != 0 {
            return Err(CommandError::new(format_args!(
                "{} exists but is writable",
                path.display()
            )));
        }
        if inv.bool("exec") && mode & 0o111 == 0 {
            return Err(CommandError::new(format_args!(
                "{} exists but is not executable",
                path.display()
            )));
        }
    }
    Ok(Outcome::Silent)
}

fn run_mkdir(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    if inv.args().is_empty() {
        return Err(CommandError::usage(""));
    }
    for path in inv.args() {
        let path = cx.path(path);
        fs::create_dir_all(&path).map_err(|error| CommandError::io("mkdir", &path, &error))?;
    }
    Ok(Outcome::Silent)
}

fn run_mv(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    let [old, new] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    let (old, new) = (cx.path(old), cx.path(new));
    fs::rename(&old, &new)
        .map_err(|error| CommandError::io(&format!("rename {}", old.display()), &new, &error))?;
    Ok(Outcome::Silent)
}

fn run_rm(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    if inv.args().is_empty() {
        return Err(CommandError::usage(""));
    }
    for path in inv.args() {
        let path = cx.path(path);
        remove(&path).map_err(|error| CommandError::io("unlinkat", &path, &error))?;
    }
    Ok(Outcome::Silent)
}

/// Removes a file or a tree; directories that cannot be written are made writable.
fn remove(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    let mode = metadata.permissions().mode();
    if mode & 0o700 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700))?;
    }
    for entry in fs::read_dir(path)? {
        remove(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn run_symlink(cx: &mut Context<'_>, inv: &Invocation) -> Run {
    let [path, arrow, target] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    if arrow != "->" {
        return Err(CommandError::usage(""));
    }
    let path = cx.path(path);
    std::os::unix::fs::symlink(target, &path)
        .map_err(|error| CommandError::io(&format!("symlink {target}"), &path, &error))?;
    Ok(Outcome::Silent)
}
