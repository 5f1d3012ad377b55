// SPDX-License-Identifier: Apache-2.0

//! The status as text: the box of Cilium's command.

use std::collections::BTreeMap;

use super::Status;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const BLUE: &str = "\x1b[34m";
const MAGENTA: &str = "\x1b[35m";
const CYAN: &str = "\x1b[36m";
const RESET: &str = "\x1b[0m";

/// Label and component of a row of the box.
const ROWS: [(&str, &str); 5] = [
    ("Cilium:", "cilium"),
    ("Operator:", "cilium-operator"),
    ("Envoy DaemonSet:", "cilium-envoy"),
    ("Hubble Relay:", "hubble-relay"),
    ("ClusterMesh:", "clustermesh-apiserver"),
];

fn logo() -> [String; 6] {
    [
        format!("{YELLOW}    /¯¯\\\n"),
        format!("{CYAN} /¯¯{YELLOW}\\__/{GREEN}¯¯\\{RESET}"),
        format!("{CYAN} \\__{RED}/¯¯\\{GREEN}__/{RESET}"),
        format!("{GREEN} /¯¯{RED}\\__/{MAGENTA}¯¯\\{RESET}"),
        format!("{GREEN} \\__{BLUE}/¯¯\\{MAGENTA}__/{RESET}"),
        format!("{BLUE}{BLUE}{BLUE}    \\__/{RESET}"),
    ]
}

fn state(status: &Status, component: &str) -> String {
    let pods = status.errors.get(component);
    let all = || pods.into_iter().flat_map(BTreeMap::values);
    if all().any(|one| one.disabled) {
        let text = match component {
            "cilium-envoy" => "disabled (using embedded mode)",
            _ => "disabled",
        };
        return format!("{CYAN}{text}{RESET}");
    }
    let errors: usize = all().map(|one| one.errors.len()).sum();
    let warnings: usize = all().map(|one| one.warnings.len()).sum();
    let mut parts = Vec::new();
    if errors > 0 {
        parts.push(format!("{RED}{errors} errors{RESET}"));
    }
    if warnings > 0 {
        parts.push(format!("{YELLOW}{warnings} warnings{RESET}"));
    }
    match parts.is_empty() {
        true => format!("{GREEN}OK{RESET}"),
        false => parts.join(", "),
    }
}

/// A table without borders: columns are as wide as their widest cell and four blanks.
#[derive(Default)]
struct Table(Vec<[String; 3]>);

impl Table {
    fn row(&mut self, first: &str, second: &str, third: &str) {
        self.0.push([first, second, third].map(str::to_owned));
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default() + 4
        };
        let (first, second) = (width(0), width(1));
        let line = |[one, two, three]: &[String; 3]| {
            let line = format!("{one:first$}{two:second$}{three}");
            line.trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// The status as text.
pub(super) fn text(status: &Status) -> String {
    let logo = logo();
    let mut out = logo[0].clone();
    for (row, (label, component)) in ROWS.iter().enumerate() {
        let art = &logo[row + 1];
        // The last part of the logo is narrower.
        let blanks = if row == 4 { 3 } else { 0 };
        out.push_str(&format!(
            "{art}{:blanks$}    {label:<20}{}\n",
            "",
            state(status, component)
        ));
    }
    out.push('\n');
    let mut table = Table::default();
    for (name, counts) in &status.pod_state {
        let mut parts = vec![format!("Desired: {}", counts.desired)];
        let of = |label: &str, count: i64| format!("{label}: {count}/{}", counts.desired);
        parts.extend((counts.ready > 0).then(|| of("Ready", counts.ready)));
        parts.extend((counts.available > 0).then(|| of("Available", counts.available)));
        parts.extend((counts.unavailable > 0).then(|| of("Unavailable", counts.unavailable)));
        table.row(&counts.kind, name, &parts.join(", "));
    }
    let mut label = "Containers:";
    for (name, phases) in &status.phase_count {
        let phases: Vec<String> = phases
            .iter()
            .map(|(phase, count)| format!("{phase}: {count}"))
            .collect();
        table.row(label, name, &phases.join(", "));
        label = "";
    }
    let pods = status.pods_count;
    let managed = format!("{}/{} managed by Cilium", pods.managed, pods.all);
    table.row("Cluster Pods:", &managed, "");
    table.row("Helm chart version:", &status.helm_chart_version, "");
    let mut label = "Image versions";
    for (name, images) in &status.image_count {
        for (image, count) in images {
            table.row(label, name, &format!("{image}: {count}"));
            label = "";
        }
    }
    for (label, of) in [("Errors:", true), ("Warnings:", false)] {
        let mut label = label;
        for (component, pods) in &status.errors {
            for (pod, found) in pods {
                for text in if of { &found.errors } else { &found.warnings } {
                    table.row(label, component, &format!("{pod}    {text}"));
                    label = "";
                }
            }
        }
    }
    let mut label = "Configuration:";
    for message in &status.config_errors {
        table.row(label, message, "");
        label = "";
    }
    out.push_str(&table.text());
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Counts, PodsCount};
    use super::*;

    #[test]
    fn the_box_is_that_of_ciliums_command() {
        let mut status = Status {
            pods_count: PodsCount { all: 5, managed: 3 },
            ..Status::default()
        };
        status.findings("hubble-relay", "hubble-relay").disabled = true;
        status.findings("cilium-envoy", "cilium-envoy").disabled = true;
        status
            .findings("cilium", "cilium-x1")
            .errors
            .push("broken".to_owned());
        status.pod_state.insert(
            "cilium".to_owned(),
            Counts {
                kind: "DaemonSet".to_owned(),
                desired: 3,
                ready: 2,
                available: 2,
                unavailable: 1,
            },
        );

        let text = text(&status);

        let colours = regex::Regex::new("\x1b\\[[0-9]*m").unwrap();
        assert_eq!(
            colours.replace_all(&text, ""),
            "    /¯¯\\
 /¯¯\\__/¯¯\\    Cilium:             1 errors
 \\__/¯¯\\__/    Operator:           OK
 /¯¯\\__/¯¯\\    Envoy DaemonSet:    disabled (using embedded mode)
 \\__/¯¯\\__/    Hubble Relay:       disabled
    \\__/       ClusterMesh:        OK

DaemonSet              cilium                   Desired: 3, Ready: 2/3, Available: 2/3, Unavailable: 1/3
Cluster Pods:          3/5 managed by Cilium
Helm chart version:
Errors:                cilium                   cilium-x1    broken
"
        );
    }
}
