// SPDX-License-Identifier: Apache-2.0

//! Results: the matrix, the report, JUnit's XML.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::scenario::Scenario;

/// An action that did not end as it must.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub(super) action: String,
    pub(super) message: String,
}

/// How a test ended.
#[derive(Debug, Default)]
pub(super) struct TestResult {
    pub(super) name: String,
    /// Why it did not run.
    pub(super) skipped: Option<String>,
    pub(super) actions: usize,
    /// Passed and all, by scenario.
    pub(super) scenarios: BTreeMap<Scenario, (usize, usize)>,
    pub(super) scenarios_skipped: usize,
    pub(super) failed: Vec<Failed>,
    pub(super) took: Duration,
}

/// Tests by scenarios: how many actions passed. Columns are numbered; their names follow.
pub(super) fn matrix(results: &[TestResult]) -> String {
    let all = results.iter().flat_map(|result| result.scenarios.keys().copied());
    let columns: Vec<Scenario> = all.collect::<BTreeSet<_>>().into_iter().collect();
    let widths = results.iter().map(|result| result.name.len());
    let width = widths.max().unwrap_or_default().max(4);
    let mut out = format!("{:width$}", "Test");
    for number in 1..=columns.len() {
        out.push_str(&format!(" {number:>5}"));
    }
    out.push('\n');
    for result in results.iter().filter(|result| result.skipped.is_none()) {
        let mut line = format!("{:width$}", result.name);
        for column in &columns {
            let cell = result.scenarios.get(column);
            let cell = cell.map_or("-".to_owned(), |(passed, all)| format!("{passed}/{all}"));
            line.push_str(&format!(" {cell:>5}"));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for (index, column) in columns.iter().enumerate() {
        out.push_str(&format!("{:>width$}  {}\n", index + 1, column.name(), width = 4));
    }
    out
}

/// The last lines.
pub(super) fn report(namespace: &str, results: &[TestResult]) -> String {
    let ran: Vec<&TestResult> = results.iter().filter(|result| result.skipped.is_none()).collect();
    let skipped = results.len() - ran.len();
    let actions: usize = ran.iter().map(|result| result.actions).sum();
    let scenarios: usize = results.iter().map(|result| result.scenarios_skipped).sum();
    let failed: Vec<&&TestResult> = ran.iter().filter(|result| !result.failed.is_empty()).collect();
    if failed.is_empty() {
        return format!(
            "✅ [{namespace}] All {} tests ({actions} actions) successful, {skipped} tests skipped, {scenarios} scenarios skipped.\n",
            ran.len()
        );
    }
    let failures: usize = failed.iter().map(|result| result.failed.len()).sum();
    let mut out = format!(
        "📋 Test Report [{namespace}]\n❌ {}/{} tests failed ({failures}/{actions} actions), {skipped} tests skipped, {scenarios} scenarios skipped:\n",
        failed.len(),
        ran.len()
    );
    for result in failed {
        out.push_str(&format!("Test [{}]:\n", result.name));
        for one in &result.failed {
            out.push_str(&format!("  🟥 {}: {}\n", one.action, one.message));
        }
    }
    out
}

/// The results in JUnit's format.
pub(super) fn junit(results: &[TestResult]) -> String {
    let seconds = |took: Duration| format!("{:.3}", took.as_secs_f64());
    let count = |of: fn(&TestResult) -> bool| results.iter().filter(|result| of(result)).count();
    let total: Duration = results.iter().map(|result| result.took).sum();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"connectivity test\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{}\">\n",
        results.len(),
        count(|result| !result.failed.is_empty()),
        count(|result| result.skipped.is_some()),
        seconds(total)
    );
    for result in results {
        let name = escaped(&result.name);
        let time = seconds(result.took);
        out.push_str(&format!(
            "<testcase name=\"{name}\" classname=\"connectivity test\" time=\"{time}\">"
        ));
        if let Some(reason) = &result.skipped {
            out.push_str(&format!("<skipped message=\"{}\"/>", escaped(reason)));
        }
        if !result.failed.is_empty() {
            let lines: Vec<String> = result
                .failed
                .iter()
                .map(|one| format!("{}: {}", one.action, one.message))
                .collect();
            out.push_str(&format!(
                "<failure message=\"{} actions failed\" type=\"failure\">{}</failure>",
                result.failed.len(),
                escaped(&lines.join("\n"))
            ));
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() && letter != '\n' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Vec<TestResult> {
        vec![
            TestResult {
                name: "no-policies".to_owned(),
                actions: 4,
                scenarios: BTreeMap::from([(Scenario::PodToPod, (3, 4))]),
                failed: vec![Failed {
                    action: "no-policies/pod-to-pod/a -> b".to_owned(),
                    message: "exit code 28 <timeout>".to_owned(),
                }],
                ..TestResult::default()
            },
            TestResult {
                name: "l7".to_owned(),
                skipped: Some("there is no L7 proxy".to_owned()),
                ..TestResult::default()
            },
        ]
    }

    #[test]
    fn results_are_a_matrix_a_report_and_xml() {
        let results = results();

        assert_eq!(
            matrix(&results),
            "Test            1\nno-policies   3/4\n   1  pod-to-pod\n"
        );
        assert_eq!(
            report("ns", &results),
            "📋 Test Report [ns]
❌ 1/1 tests failed (1/4 actions), 1 tests skipped, 0 scenarios skipped:
Test [no-policies]:
  🟥 no-policies/pod-to-pod/a -> b: exit code 28 <timeout>
"
        );
        let xml = junit(&results);
        assert!(xml.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{xml}");
        assert!(
            xml.contains("a -&gt; b: exit code 28 &lt;timeout&gt;</failure>"),
            "{xml}"
        );
    }
}
