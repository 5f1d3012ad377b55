// SPDX-License-Identifier: Apache-2.0

//! What the plan has found, for people and for tools.

use std::fmt;
use std::panic::Location;

use crate::json::Json;
use crate::module::ModulePath;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The hive can run.
    Warning,
    /// The hive cannot be built.
    Error,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// What kind of finding it is.
        ///
        /// ```
        /// # use hive::{Cell, Code, Hive, Settings, Severity};
        /// # let _ = (Code::Missing, Severity::Error);
        /// let cell = Cell::module("store", "Stores").provide(|| std::sync::Arc::new(1_u8));
        /// let plan = Hive::new([cell]).plan(Settings::new())?;
        /// assert_eq!(plan.report().findings()[0].code, Code::Unused);
        /// # Ok::<_, hive::Report>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code to search for: `H003`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }
    };
}

codes! {
    /// A module's id or title does not have the right form.
    BadModule = "H001";
    /// Two modules have the same path.
    DuplicateModule = "H002";
    /// Nothing provides what a function needs.
    Missing = "H003";
    /// What a function needs is provided, but private to another module.
    Private = "H004";
    /// Two constructors provide one key.
    DuplicateProvider = "H005";
    /// Constructors need each other.
    Cycle = "H006";
    /// A decorator does not take what it gives, or nothing provides it.
    BadDecorator = "H007";
    /// An override of a test or embedder that matches nothing.
    BadOverride = "H008";
    /// Two cells declare one setting.
    DuplicateFlag = "H009";
    /// A value has the wrong form.
    BadValue = "H010";
    /// A key that no cell knows.
    UnknownKey = "H011";
    /// What a function needs is provided by a cell that is disabled.
    Disabled = "H012";
    /// A private value hides one from further out.
    Shadowing = "H013";
    /// Nothing uses a constructor.
    Unused = "H014";
    /// Values do not fit together.
    Invalid = "H015";
    /// A flag that no cell knows.
    UnknownFlag = "H016";
    /// An old name, or a setting that will go away.
    Deprecated = "H017";
    /// A condition or check asks for a configuration that is not there.
    MissingConfig = "H018";
    /// An object outside of a scope needs one inside.
    ScopeEscape = "H019";
    /// A source of configuration cannot be read.
    BadSource = "H020";
    /// A call on a cell stands where it changes nothing.
    Misplaced = "H021";
    /// Members of a group that nothing collects, while a group of nearly the same type is collected.
    WrongMember = "H022";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A function that has to do with a finding.
#[derive(Clone, Debug)]
pub struct Involved {
    /// What it has to do with it: `needed by`.
    pub role: &'static str,
    /// The function or setting.
    pub what: String,
    /// Where it was declared.
    pub place: Option<&'static Location<'static>>,
    /// Its module.
    pub module: ModulePath,
}

/// One thing that is wrong with a hive.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// Who has to do with it.
    pub involved: Vec<Involved>,
    /// How the thing came to be wanted, from what is run inwards.
    pub path: Vec<String>,
    /// What to do.
    pub help: Vec<String>,
}

impl Finding {
    pub(crate) fn new(code: Code, severity: Severity, message: String) -> Self {
        Self {
            code,
            severity,
            message,
            involved: Vec::new(),
            path: Vec::new(),
            help: Vec::new(),
        }
    }

    pub(crate) fn error(code: Code, message: String) -> Self {
        Self::new(code, Severity::Error, message)
    }

    pub(crate) fn warning(code: Code, message: String) -> Self {
        Self::new(code, Severity::Warning, message)
    }

    pub(crate) fn involve(
        mut self,
        role: &'static str,
        what: impl Into<String>,
        place: Option<&'static Location<'static>>,
        module: &ModulePath,
    ) -> Self {
        self.involved.push(Involved {
            role,
            what: what.into(),
            place,
            module: module.clone(),
        });
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{severity}[{}]: {}", self.code, self.message)?;
        let width = self
            .involved
            .iter()
            .map(|one| one.what.chars().count())
            .max()
            .unwrap_or(0)
            .max(24);
        for one in &self.involved {
            let place = one
                .place
                .map(|place| format!("{}:{}", place.file(), place.line()))
                .unwrap_or_default();
            let line = format!("  {:<11} {:<width$}   {place}", one.role, one.what);
            writeln!(f, "{}", line.trim_end())?;
            let module = if one.module.is_root() {
                "(root)"
            } else {
                one.module.as_str()
            };
            writeln!(f, "  {:<11} {module}", "in module")?;
        }
        for (index, step) in self.path.iter().enumerate() {
            let role = if index == 0 { "wanted via" } else { "" };
            writeln!(f, "  {role:<11} {step}")?;
        }
        for help in &self.help {
            writeln!(f, "  help: {help}")?;
        }
        Ok(())
    }
}

/// Everything that the plan found, in the order of declaration. Errors come first.
///
/// ```
/// use hive::{Cell, Hive, Settings};
/// # use std::sync::Arc; struct Store;
/// fn serve(_store: Arc<Store>) {}
///
/// let cell = Cell::module("server", "Serves").run(serve);
/// let report = Hive::new([cell]).plan(Settings::new()).err().unwrap();
/// assert!(report.to_string().starts_with("error[H003]: nothing provides `Arc<Store>`"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Self { findings }
    }

    /// All findings.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The findings that keep the hive from being built.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
    }

    /// The other findings.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Warning)
    }

    /// Whether there is no error.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
    }

    /// For tools.
    #[must_use]
    pub fn to_json(&self) -> String {
        let findings = self.findings.iter().map(|finding| {
            let involved = finding.involved.iter().map(|one| {
                let (file, line) = match one.place {
                    Some(place) => (Json::text(place.file()), Json::Number(place.line().into())),
                    None => (Json::Null, Json::Null),
                };
                Json::Object(vec![
                    ("role", Json::text(one.role)),
                    ("what", Json::text(&one.what)),
                    ("module", Json::text(&one.module)),
                    ("file", file),
                    ("line", line),
                ])
            });
            let severity = if finding.severity == Severity::Error {
                "error"
            } else {
                "warning"
            };
            Json::Object(vec![
                ("code", Json::text(finding.code)),
                ("severity", Json::text(severity)),
                ("message", Json::text(&finding.message)),
                ("involved", Json::List(involved.collect())),
                ("path", Json::List(finding.path.iter().map(Json::text).collect())),
                ("help", Json::List(finding.help.iter().map(Json::text).collect())),
            ])
        });
        Json::Object(vec![("findings", Json::List(findings.collect()))]).pretty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            finding.fmt(f)?;
        }
        let (errors, warnings) = (self.errors().count(), self.warnings().count());
        let plural =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        if errors > 0 {
            write!(
                f,
                "{}, {}; no constructor was run",
                plural(errors, "error"),
                plural(warnings, "warning")
            )
        } else {
            write!(f, "no error, {}", plural(warnings, "warning"))
        }
    }
}

impl std::error::Error for Report {}
