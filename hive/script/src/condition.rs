// SPDX-License-Identifier: Apache-2.0

//! Conditions that guard lines: `[root]`, `[exec:curl]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Environment;

/// Conditions by name.
pub type Conditions = BTreeMap<String, Condition>;

type Test = Arc<dyn Fn(&Environment, &str) -> Result<bool, String> + Send + Sync>;

/// A condition of the script language.
#[derive(Clone)]
pub struct Condition {
    summary: String,
    takes_suffix: bool,
    test: Test,
}

/// Why a guard cannot be decided. The script fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// No condition of that name.
    #[error("unknown condition {0:?}")]
    Unknown(String),
    /// No condition of the name before the colon.
    #[error("unknown condition prefix {0:?}")]
    UnknownPrefix(String),
    /// A colon where none belongs.
    #[error("condition {0:?} cannot be used with a suffix")]
    NeedlessSuffix(String),
    /// No colon where one belongs.
    #[error("condition {0:?} requires a suffix")]
    MissingSuffix(String),
    /// The test of the condition failed.
    #[error("evaluating condition {tag:?}: {reason}")]
    Failed {
        /// The condition with its suffix.
        tag: String,
        /// Its error.
        reason: String,
    },
}

impl Condition {
    /// A condition that holds or not for the whole script.
    pub fn fixed(summary: impl Into<String>, holds: bool) -> Self {
        Self {
            summary: summary.into(),
            takes_suffix: false,
            test: Arc::new(move |_, _| Ok(holds)),
        }
    }

    /// A condition with a suffix behind a colon, which `test` gets together with the script's variables.
    pub fn with_suffix(
        summary: impl Into<String>,
        test: impl Fn(&Environment, &str) -> Result<bool, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            summary: summary.into(),
            takes_suffix: true,
            test: Arc::new(test),
        }
    }

    /// Its help text, one sentence.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Whether it is written with a colon and a suffix.
    pub fn takes_suffix(&self) -> bool {
        self.takes_suffix
    }
}

/// Whether the condition `tag` holds.
pub(crate) fn evaluate(
    conditions: &Conditions,
    environment: &Environment,
    tag: &str,
) -> Result<bool, ConditionError> {
    let (condition, suffix) = match (conditions.get(tag), tag.split_once(':')) {
        (Some(condition), _) => {
            if condition.takes_suffix {
                return Err(ConditionError::MissingSuffix(tag.to_owned()));
            }
            (condition, "")
        }
        (None, Some((prefix, suffix))) => {
            let condition = conditions
                .get(prefix)
                .ok_or_else(|| ConditionError::UnknownPrefix(prefix.to_owned()))?;
            if !condition.takes_suffix {
                return Err(ConditionError::NeedlessSuffix(prefix.to_owned()));
            }
            (condition, suffix)
        }
        (None, None) => return Err(ConditionError::Unknown(tag.to_owned())),
    };
    (condition.test)(environment, suffix).map_err(|reason| ConditionError::Failed {
        tag: tag.to_owned(),
        reason,
    })
}

/// The conditions every engine may offer: `GOOS`, `GOARCH`, `compiler`, `root`, under the names that scripts know.
pub fn default_conditions() -> Conditions {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    BTreeMap::from([
        (
            "GOOS".to_owned(),
            Condition::with_suffix("the operating system is <suffix>", |_, os| {
                Ok(os == std::env::consts::OS)
            }),
        ),
        (
            "GOARCH".to_owned(),
            Condition::with_suffix("the architecture is <suffix>", move |_, name| Ok(name == arch)),
        ),
        (
            "compiler".to_owned(),
            // Scripts ask for the usual one of two compilers, whatever these programs are written in.
            Condition::with_suffix("the toolchain is the usual one, gc", |_, name| match name {
                "gc" => Ok(true),
                "gccgo" => Ok(false),
                other => Err(format!("unrecognized compiler {other:?}")),
            }),
        ),
        (
            "root".to_owned(),
            Condition::fixed("the user is root", rustix::process::geteuid().is_root()),
        ),
    ])
}

/// The conditions a test wrapper adds: `exec`, `short`, `verbose`.
pub fn test_conditions(short: bool, verbose: bool) -> Conditions {
    BTreeMap::from([
        (
            "exec".to_owned(),
            Condition::with_suffix("<suffix> is a program in PATH", |environment, program| {
                Ok(crate::builtin::find_program(environment, program).is_some())
            }),
        ),
        (
            "short".to_owned(),
            Condition::fixed("tests are to be short", short),
        ),
        (
            "verbose".to_owned(),
            Condition::fixed("tests are to print much", verbose),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(tag: &str) -> String {
        let environment = Environment::new();
        evaluate(&default_conditions(), &environment, tag)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn misuse_is_named() {
        assert_eq!(error("nope"), "unknown condition \"nope\"");
        assert_eq!(error("nope:x"), "unknown condition prefix \"nope\"");
        assert_eq!(error("root:x"), "condition \"root\" cannot be used with a suffix");
        assert_eq!(error("GOOS"), "condition \"GOOS\" requires a suffix");
        assert_eq!(
            error("compiler:x"),
            "evaluating condition \"compiler:x\": unrecognized compiler \"x\""
        );
    }

    #[test]
    fn the_system_is_known() {
        let environment = Environment::new();

        assert_eq!(
            evaluate(&default_conditions(), &environment, "GOOS:linux"),
            Ok(cfg!(target_os = "linux"))
        );
        for (tag, holds) in [("compiler:gc", true), ("compiler:gccgo", false)] {
            assert_eq!(evaluate(&default_conditions(), &environment, tag), Ok(holds));
        }
        assert_eq!(
            evaluate(&test_conditions(true, false), &environment, "short"),
            Ok(true)
        );
        assert_eq!(
            evaluate(&test_conditions(true, false), &environment, "exec:sh"),
            Ok(false)
        );
    }
}
