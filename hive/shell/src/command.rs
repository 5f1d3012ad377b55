// SPDX-License-Identifier: Apache-2.0

//! Read-only commands of a running hive: `hive`, `hive/hooks`,
//! `hive/jobs`, `hive/graph`, `hive/state`.

use std::time::Duration;

use hive::{Controller, GraphView};
use hive_script::text::{TabWriter, format_duration};
use hive_script::{CommandError, CommandHandle, Flag, Invocation, Outcome, Spec, function};

/// The commands.
pub(crate) fn commands(controller: &Controller) -> [CommandHandle; 5] {
    [
        tree(controller.clone()),
        plain(
            controller,
            Spec::new("hive/hooks", "Show the hooks of the hive and how long they took"),
            hooks,
        ),
        plain(
            controller,
            Spec::new("hive/jobs", "Show the jobs that run, are retried or have failed"),
            jobs,
        ),
        graph(controller.clone()),
        plain(
            controller,
            Spec::new(
                "hive/state",
                "Show the hive, its hooks, jobs and settings as JSON",
            ),
            Controller::to_json,
        ),
    ]
}

fn no_arguments(invocation: &Invocation) -> Result<(), CommandError> {
    if invocation.args().is_empty() {
        Ok(())
    } else {
        Err(CommandError::usage(""))
    }
}

fn tree(controller: Controller) -> CommandHandle {
    function(
        Spec::new("hive", "Show the cells and hooks of the hive"),
        move |cx, invocation| {
            no_arguments(invocation)?;
            cx.log(controller.tree());
            Ok(Outcome::Silent)
        },
    )
}

fn plain(controller: &Controller, spec: Spec, show: fn(&Controller) -> String) -> CommandHandle {
    let controller = controller.clone();
    function(spec, move |_, invocation| {
        no_arguments(invocation)?;
        Ok(Outcome::stdout(show(&controller)))
    })
}

/// A duration, short enough for a column.
fn short(duration: Option<Duration>) -> String {
    let rounded = |duration: Duration| {
        let unit = match duration.as_secs() {
            0 => 1_000,
            1..60 => 1_000_000,
            _ => 1_000_000_000,
        };
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos / unit * unit)
    };
    duration.map_or_else(|| "-".to_owned(), |duration| format_duration(rounded(duration)))
}

fn hooks(controller: &Controller) -> String {
    let mut table = TabWriter::new();
    table.row(["Module", "Hook", "State", "Start", "Stop", "Scope"]);
    for hook in controller.hooks() {
        let busy = hook
            .running_for
            .map(|age| format!("{} for {}", hook.state, short(Some(age))));
        table.row([
            hook.module.to_string(),
            hook.name.to_string(),
            busy.unwrap_or_else(|| hook.state.to_string()),
            short(hook.start_took),
            short(hook.stop_took),
            hook.scope.unwrap_or("-").to_owned(),
        ]);
    }
    table.finish()
}

fn jobs(controller: &Controller) -> String {
    let mut table = TabWriter::new();
    table.row([
        "Module", "Job", "Kind", "State", "Age", "Run", "Runs", "Failures", "Error",
    ]);
    for job in controller.jobs() {
        let error = job.last_error.as_deref().unwrap_or("-");
        table.row([
            job.module.to_string(),
            job.name.to_string(),
            job.kind.to_string(),
            job.state.to_string(),
            short(Some(job.age())),
            short(job.running_for()),
            job.runs.to_string(),
            job.failures.to_string(),
            // One line a job.
            error.replace('\n', " "),
        ]);
    }
    table.finish()
}

fn graph(controller: Controller) -> CommandHandle {
    let spec = Spec::new("hive/graph", "Draw the functions of the hive and what they need")
        .flag(Flag::string("format", "dot", "dot, json or mermaid"))
        .flag(Flag::string(
            "module",
            "",
            "only functions of this module and those inside",
        ))
        .flag(Flag::string(
            "from",
            "",
            "only what gives this type or has this name, and what it needs",
        ))
        .flag(Flag::int(
            "depth",
            0,
            "how many steps away from these; 0 sets no limit",
        ));
    function(spec, move |_, invocation| {
        no_arguments(invocation)?;
        let text = |flag: &str| Some(invocation.string(flag).to_owned()).filter(|text| !text.is_empty());
        let view = GraphView {
            format: invocation.string("format").parse().map_err(CommandError::new)?,
            module: text("module"),
            from: text("from"),
            depth: usize::try_from(invocation.int("depth"))
                .ok()
                .filter(|depth| *depth > 0),
        };
        let drawing = controller.draw(&view).map_err(CommandError::new)?;
        Ok(Outcome::stdout(drawing))
    })
}
