// SPDX-License-Identifier: Apache-2.0

//! Suites: hives for scripts, registered by the crates whose cells they assemble.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{AssemblyError, Parts};
use crate::Retry;

/// The hive of a script while it is made.
pub type Assembling = BoxFuture<'static, Result<Parts, AssemblyError>>;

/// Makes the hive of one script.
pub type Assemble = fn(Setup) -> Assembling;

/// A kind of hive that scripts run against, with the scripts that its crate has for it.
///
/// ```
/// use hive::{Cell, Hive};
/// use hive_script::testing::{Assembling, Assembly, Setup, Suite};
///
/// fn assemble(setup: Setup) -> Assembling {
///     Assembly::new(|| Hive::new([Cell::module("widgets", "Keeps widgets")])).flags(&setup).build()
/// }
///
/// hive_script::suite!(Suite::new("widgets", "Commands on widgets", "testdata", assemble));
///
/// # fn main() {
/// let suite = hive_script::testing::find_suite("widgets").unwrap();
/// assert_eq!(suite.summary(), "Commands on widgets");
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Suite {
    name: &'static str,
    summary: &'static str,
    folder: &'static str,
    retry: Retry,
    timeout: Duration,
    choices: &'static [Choice],
    samples: &'static [&'static str],
    prepare: Option<Prepare>,
    threads: Option<Threads>,
    assemble: Assemble,
}

/// Prepares the threads of one script: returns what each of them starts with.
pub type Threads = fn() -> Result<ThreadStart, AssemblyError>;

/// What a thread starts with.
pub type ThreadStart = Arc<dyn Fn() + Send + Sync>;

/// Prepares a process for the scripts of a suite.
pub type Prepare = fn(&Choices) -> Result<(), AssemblyError>;

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Suite {
    /// A suite: its name on the command line, one sentence for the list of suites, the folder of its scripts relative
    /// to the `Cargo.toml` of its crate, and what makes the hive of a script. A script has 10 seconds.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        folder: &'static str,
        assemble: Assemble,
    ) -> Self {
        Self {
            name,
            summary,
            folder,
            retry: Retry::every(Duration::from_millis(100)),
            timeout: Duration::from_secs(10),
            choices: &[],
            samples: &[""],
            prepare: None,
            threads: None,
            assemble,
        }
    }

    /// Sets the pause before the first repetition of a section; without it 100 ms. It doubles up to 500 ms.
    #[must_use]
    pub const fn retry_interval(mut self, interval: Duration) -> Self {
        self.retry = Retry::every(interval);
        self
    }

    /// Sets the time that a script has.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Declares what the runner may choose. The first value of each is the default; tests run with each of the others,
    /// too.
    #[must_use]
    pub const fn choices(mut self, choices: &'static [Choice]) -> Self {
        self.choices = choices;
        self
    }

    /// Scripts that get hives with different commands, for suites that look at the script: the reference of commands
    /// describes those of all samples.
    #[must_use]
    pub const fn samples(mut self, scripts: &'static [&'static str]) -> Self {
        self.samples = scripts;
        self
    }

    /// Prepares the process. It is called before the process has threads, such as to enter a namespace.
    #[must_use]
    pub const fn prepare(mut self, prepare: Prepare) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// Gives each script threads of its own, such as threads in a namespace. Without it scripts share those of the runner.
    #[must_use]
    pub const fn threads(mut self, threads: Threads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Name on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// One sentence for the list of suites.
    pub fn summary(&self) -> &'static str {
        self.summary
    }

    pub(super) fn folder(&self) -> &'static str {
        self.folder
    }

    pub(super) fn retry(&self) -> Retry {
        self.retry
    }

    pub(super) fn time(&self) -> Duration {
        self.timeout
    }

    pub(super) fn declared(&self) -> &'static [Choice] {
        self.choices
    }

    pub(super) fn sample_scripts(&self) -> &'static [&'static str] {
        self.samples
    }

    pub(super) fn assemble(&self) -> Assemble {
        self.assemble
    }

    pub(super) fn own_threads(&self) -> Option<Threads> {
        self.threads
    }

    pub(super) fn prepare_process(&self, choices: &Choices) -> Result<(), AssemblyError> {
        self.prepare.map_or(Ok(()), |prepare| prepare(choices))
    }
}

/// What is known of a script before its hive is made.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The arguments behind `#!`, with `$WORK` replaced.
    pub args: Vec<String>,
    /// The script's text, without the files.
    pub script: String,
    /// The script's work directory.
    pub work_dir: PathBuf,
    /// A directory for files of the cells.
    pub state_dir: PathBuf,
    /// What the runner chose.
    pub choices: Choices,
    /// Whether the condition `verbose` holds.
    pub verbose: bool,
}

/// What a suite lets the runner choose, such as maps in memory or in the kernel: a flag of `run-scripts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Name of the flag, without dashes.
    pub name: &'static str,
    /// Help text of the flag.
    pub summary: &'static str,
    /// Values, each with its help text; the first is the default.
    pub values: &'static [(&'static str, &'static str)],
}

impl Choice {
    pub(super) fn default_value(&self) -> &'static str {
        self.values.first().map_or("", |(value, _)| value)
    }
}

/// Values that differ from the defaults, by the name of the [`Choice`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choices(BTreeMap<String, String>);

impl Choices {
    /// Sets a value.
    #[must_use]
    pub fn with(mut self, choice: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(choice.into(), value.into());
        self
    }

    /// Returns the value of a choice, its default if none is set.
    pub fn value(&self, choice: &Choice) -> &str {
        self.0
            .get(choice.name)
            .map_or(choice.default_value(), String::as_str)
    }

    /// Returns the first value that a suite does not know, with its choice. Values of choices that the suite does not
    /// declare have no effect on it.
    pub(super) fn unknown(&self, suite: &Suite) -> Option<(&'static Choice, &str)> {
        let declared = suite.declared().iter();
        declared
            .map(|choice| (choice, self.value(choice)))
            .find(|(choice, value)| !choice.values.iter().any(|(known, _)| known == value))
    }
}

/// A suite and the crate that registered it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Registered {
    pub package: &'static str,
    pub suite: Suite,
}

inventory::collect!(Registered);

/// Registers a [`Suite`] of this crate; stands in any module. A program has the suites of the crates that it links:
/// `use widgets as _;` links a crate of which it uses nothing else.
#[macro_export]
macro_rules! suite {
    ($suite:expr) => {
        $crate::testing::__private::inventory::submit! {
            $crate::testing::Registered { package: env!("CARGO_PKG_NAME"), suite: $suite }
        }
    };
}

fn registered() -> Vec<&'static Registered> {
    let mut all: Vec<_> = inventory::iter::<Registered>.into_iter().collect();
    all.sort_by_key(|registered| (registered.suite.name, registered.package));
    all
}

/// Returns the suites of all linked crates, sorted by name.
pub fn suites() -> Vec<&'static Suite> {
    registered()
        .into_iter()
        .map(|registered| &registered.suite)
        .collect()
}

/// Returns the suite of a name.
pub fn find_suite(name: &str) -> Option<&'static Suite> {
    suites().into_iter().find(|suite| suite.name == name)
}

/// Returns the suites of a package.
pub(super) fn suites_of(package: &str) -> Vec<&'static Suite> {
    let of_package = registered()
        .into_iter()
        .filter(|registered| registered.package == package);
    of_package.map(|registered| &registered.suite).collect()
}

/// Returns a name that several suites have, and their packages.
pub(super) fn duplicate() -> Option<(&'static str, [&'static str; 2])> {
    let all = registered();
    let twice = all
        .windows(2)
        .find(|pair| pair[0].suite.name == pair[1].suite.name)?;
    Some((twice[0].suite.name, [twice[0].package, twice[1].package]))
}
