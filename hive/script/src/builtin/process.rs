// SPDX-License-Identifier: Apache-2.0

//! `exec`, `sleep` and `wait`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command as Process};

use crate::text::parse_duration_nanos;
use crate::{
    Command, CommandError, CommandHandle, Context, Environment, Interruption, Invocation, Outcome, Output,
    Spec, function,
};

/// Time between an interrupt signal and the kill of a program.
const KILL_DELAY: Duration = Duration::from_millis(100);

pub(super) fn commands() -> [CommandHandle; 3] {
    [
        Arc::new(Exec {
            spec: Spec::new("exec", "Run a program and wait for it")
                .args("program [args...]")
                .detail("The program is searched in the script's PATH and gets the script's variables.")
                .detail("When the script ends it is interrupted, and killed 100 ms later.")
                .asynchronous(),
        }),
        function(
            Spec::new("sleep", "Wait")
                .args("duration")
                .detail("Durations look like 150ms or 2s.")
                .asynchronous(),
            run_sleep,
        ),
        Arc::new(Wait {
            spec: Spec::new("wait", "Wait for all background commands"),
        }),
    ]
}

struct Exec {
    spec: Spec,
}

#[async_trait]
impl Command for Exec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let [program, args @ ..] = inv.args() else {
            return Err(CommandError::usage(""));
        };
        let path = if program.contains('/') {
            cx.path(program)
        } else {
            find_program(cx.environment(), program).ok_or_else(|| {
                CommandError::new(format_args!(
                    "exec: {program:?}: executable file not found in $PATH"
                ))
            })?
        };
        let child = Process::new(&path)
            .arg0(program)
            .args(args)
            .current_dir(cx.current_dir())
            .env_clear()
            .envs(cx.environment().iter())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| CommandError::io("fork/exec", program, &error))?;
        let interrupted = cx.interrupted();
        Ok(Outcome::Pending(Box::pin(finish(child, interrupted))))
    }
}

/// Collects what a program writes until it ends, by itself or by signal.
async fn finish(
    mut child: Child,
    interrupted: impl Future<Output = Interruption>,
) -> Result<Output, CommandError> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = async move {
        let (stdout, stderr) = tokio::join!(read_all(stdout), read_all(stderr));
        Output { stdout, stderr }
    };
    let mut output = Box::pin(output);
    let id = child.id();
    let (output, interruption) = tokio::select! {
        biased;
        output = &mut output => (Some(output), None),
        interruption = interrupted => {
            if let Some(pid) = id.and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
                // A program that has ended needs no signal.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            }
            (tokio::time::timeout(KILL_DELAY, output).await.ok(), Some(interruption))
        }
    };
    if let Some(interruption) = interruption {
        if tokio::time::timeout(KILL_DELAY, child.wait()).await.is_err() {
            // Fails only if the program has ended in the meantime.
            let _ = child.kill().await;
        }
        return Err(CommandError::from(interruption).with_output(output.unwrap_or_default()));
    }
    let output = output.unwrap_or_default();
    let status = child
        .wait()
        .await
        .map_err(|error| CommandError::io("wait", "", &error))?;
    if status.success() {
        Ok(output)
    } else {
        Err(CommandError::new(status_text(status)).with_output(output))
    }
}

async fn read_all(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What was read before an error is all there is to show.
        let _ = stream.read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status_text(status: ExitStatus) -> String {
    if let Some(code) = status.code() {
        return format!("exit status {code}");
    }
    let signal = status.signal().unwrap_or_default();
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => "",
    };
    let name = if name.is_empty() {
        format!("signal {signal}")
    } else {
        name.to_owned()
    };
    let core = if status.core_dumped() {
        " (core dumped)"
    } else {
        ""
    };
    format!("signal: {name}{core}")
}

/// Path of a program, found by the script's `PATH`.
pub(crate) fn find_program(environment: &Environment, program: &str) -> Option<PathBuf> {
    let is_executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| is_executable(path));
    }
    std::env::split_paths(environment.get("PATH")?)
        .map(|dir| dir.join(program))
        .find(|path| is_executable(path))
}

fn run_sleep(cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let [duration] = inv.args() else {
        return Err(CommandError::usage(""));
    };
    // A negative duration does not wait.
    let nanos = parse_duration_nanos(duration).map_err(CommandError::new)?;
    let duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    let interrupted = cx.interrupted();
    Ok(Outcome::Pending(Box::pin(async move {
        tokio::select! {
            () = tokio::time::sleep(duration) => Ok(Output::default()),
            interruption = interrupted => Err(interruption.into()),
        }
    })))
}

struct Wait {
    spec: Spec,
}

#[async_trait]
impl Command for Wait {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        if !inv.args().is_empty() {
            return Err(CommandError::usage(""));
        }
        cx.state.wait_background().await?;
        Ok(Outcome::Silent)
    }
}
