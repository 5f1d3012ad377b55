// SPDX-License-Identifier: Apache-2.0

//! Settings of the labels that count.

use std::path::PathBuf;

use hive::config::Faults;

use crate::filter::{FilterError, LabelFilter};

/// Which labels identities have.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = LabelConfig::check)]
pub struct LabelConfig {
    /// Label patterns of identities, `[source:][!]expression`, in addition to the default ones or those of
    /// `label-prefix-file`.
    pub labels: Vec<String>,
    /// JSON file with label patterns of identities, instead of the default ones.
    pub label_prefix_file: PathBuf,
}

impl LabelConfig {
    fn check(&self, faults: &mut Faults) {
        match self.filter() {
            Ok(_) => {}
            Err(FilterError::File(error)) => {
                faults.add("label-prefix-file", hive::error_chain(&error).to_string());
            }
            Err(FilterError::Pattern(error)) => faults.add("labels", hive::error_chain(&error).to_string()),
        }
    }

    /// Which labels identities have.
    ///
    /// # Errors
    ///
    /// [`FilterError`] for a file or a pattern that cannot be used.
    pub fn filter(&self) -> Result<LabelFilter, FilterError> {
        let patterns = self.labels.iter().map(String::as_str);
        match self.label_prefix_file.as_os_str().is_empty() {
            true => Ok(LabelFilter::new(patterns)?),
            false => LabelFilter::of_file(&self.label_prefix_file, patterns),
        }
    }
}

#[cfg(test)]
mod tests {
    use hive::{Cell, Hive, Settings};

    use super::*;

    fn report(flags: &[&str]) -> String {
        let hive = Hive::new([Cell::group([]).config::<LabelConfig>()]);
        let plan = hive.plan(Settings::new().args(flags.iter().copied()));
        plan.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn faults_name_the_setting_the_file_and_the_pattern() {
        let report = report(&["--label-prefix-file=/nowhere/prefixes.json"]);
        assert!(
            report.contains("label-prefix-file")
                && report.contains("cannot read /nowhere/prefixes.json: No such file"),
            "{report}"
        );
        let report = self::report(&["--labels=k8s:app("]);
        assert!(report.contains("`k8s:app(` is no regular expression"), "{report}");
    }
}
