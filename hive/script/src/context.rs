// SPDX-License-Identifier: Apache-2.0

//! What a running command sees of its script: directories, variables, buffers, log and the other commands.

use std::future::Future;
use std::path::{Component, Path, PathBuf};

use crate::state::CommandSet;
use crate::{CommandError, Environment, Interruption, Lifetime, ScriptError, State};

/// What a running command sees of its script.
pub struct Context<'a> {
    pub(crate) state: &'a mut State,
}

impl Context<'_> {
    /// Adds text to the log. The text should end in a newline.
    pub fn log(&mut self, text: impl AsRef<str>) {
        self.state.log.write(text.as_ref());
    }

    /// The absolute, cleaned form of a path of the script; relative ones start at the current directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.state.path(path)
    }

    /// The directory in which the archive was unpacked.
    pub fn work_dir(&self) -> &Path {
        &self.state.work_dir
    }

    /// The current directory.
    pub fn current_dir(&self) -> &Path {
        &self.state.cwd
    }

    /// Reads a file of the script. Bytes that are not UTF-8 are replaced.
    pub fn read_file(&self, path: impl AsRef<Path>) -> std::io::Result<String> {
        let path = self.known_path(path.as_ref())?;
        Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
    }

    /// Writes a file of the script.
    pub fn write_file(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> std::io::Result<()> {
        std::fs::write(self.known_path(path.as_ref())?, content)
    }

    /// The path of a file. In a shell it must be absolute, since the user's directory is unknown.
    fn known_path(&self, path: &Path) -> std::io::Result<PathBuf> {
        if self.state.is_shell && path.is_relative() {
            let message = "the path must be absolute: the shell does not know your directory";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message));
        }
        Ok(self.path(path))
    }

    /// Replaces variables in `text` by their values.
    pub fn expand(&self, text: &str) -> String {
        self.state.environment.expand(text)
    }

    /// The script's variables.
    pub fn environment(&self) -> &Environment {
        &self.state.environment
    }

    /// The script's variables, to be changed.
    pub fn environment_mut(&mut self) -> &mut Environment {
        &mut self.state.environment
    }

    /// What the last command with output wrote to stdout.
    pub fn stdout(&self) -> &str {
        &self.state.stdout
    }

    /// What the last command with output wrote to stderr.
    pub fn stderr(&self) -> &str {
        &self.state.stderr
    }

    /// All commands.
    pub fn commands(&self) -> &CommandSet {
        &self.state.commands
    }

    /// All commands, to be replaced by `hive/recreate`.
    pub fn commands_mut(&mut self) -> &mut CommandSet {
        &mut self.state.commands
    }

    /// How long the script may run.
    pub fn lifetime(&self) -> &Lifetime {
        &self.state.lifetime
    }

    /// Waits for the end of the script. The future does not borrow the context.
    pub fn interrupted(&self) -> impl Future<Output = Interruption> + Send + 'static {
        self.state.lifetime.interrupted()
    }

    /// Waits for `future`, or fails when the script ends before it.
    pub async fn until_interrupted<F: Future>(&self, future: F) -> Result<F::Output, CommandError> {
        let interrupted = self.interrupted();
        tokio::select! {
            biased;
            value = future => Ok(value),
            interruption = interrupted => Err(interruption.into()),
        }
    }

    /// How often the current section was repeated by `*`, 0 in the first run.
    pub fn retries(&self) -> u32 {
        self.state.retries
    }

    /// Whether the current line has a `*`.
    pub fn repeats(&self) -> bool {
        self.state.repeats
    }

    /// Whether expected texts that differ are to be replaced instead of failing.
    pub fn is_update(&self) -> bool {
        self.state.update
    }

    /// Whether `path` is a file of the script's archive.
    pub fn is_archive_file(&self, path: impl AsRef<Path>) -> bool {
        self.state.archive_files.contains(&self.path(path))
    }

    /// In update mode: replaces the expected file `path`, on disk now and in the archive after the script.
    pub fn update_file(&mut self, path: impl AsRef<Path>, content: impl Into<String>) -> std::io::Result<()> {
        let (path, content) = (self.path(path), content.into());
        std::fs::write(&path, &content)?;
        self.state.updates.insert(path, content);
        Ok(())
    }

    /// Runs a line in this script, as a section of its own. For commands that read lines themselves, such as `break`.
    pub async fn run_line(&mut self, line: &str) -> Result<(), ScriptError> {
        let retries = std::mem::take(&mut self.state.retries);
        // The caller sees the failure.
        let break_on_error = std::mem::take(&mut self.state.break_on_error);
        let file = self.state.file.clone();
        let result = Box::pin(self.state.execute_lines(&file, line)).await;
        self.state.break_on_error = break_on_error;
        self.state.retries = retries;
        result.map(drop)
    }
}

/// The shortest lexical form of an absolute path, without `.`, `..` and doubled separators.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
