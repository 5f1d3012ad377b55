// SPDX-License-Identifier: Apache-2.0

//! Log lines on the standard error output and in the log file, each with what identifies the invocation.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::call::Call;

/// A larger log file is set apart.
const LARGEST: u64 = 100 << 20;
/// How many of these are kept.
const KEPT: usize = 7;

#[derive(Debug)]
pub(crate) struct Log {
    is_verbose: bool,
    is_json: bool,
    has_time: bool,
    file: Option<PathBuf>,
    about: Vec<(&'static str, String)>,
}

impl Log {
    pub(crate) fn new(call: &Call) -> Self {
        let format = call.config.log_format.to_lowercase();
        let about = [
            ("subsys", "cilium-cni"),
            ("eventID", &uuid::Uuid::new_v4().to_string()),
            ("containerID", &call.container),
            ("netNSName", &call.netns),
            ("interface", &call.interface),
            ("args", &call.arguments),
            ("file-path", &call.path),
            ("k8sNamespace", &call.pod.namespace),
            ("k8sPodName", &call.pod.name),
        ]
        .map(|(key, value)| (key, value.to_owned()));
        let file = Path::new(&call.config.log_file);
        let mut log = Self {
            is_verbose: call.config.enable_debug,
            is_json: format.starts_with("json"),
            has_time: !matches!(format.as_str(), "text" | "json"),
            file: None,
            about: Vec::new(),
        };
        if !matches!(format.as_str(), "" | "text" | "text-ts" | "json" | "json-ts") {
            let error = format!(
                "incorrect log format configured '{format}', expected 'text', 'text-ts', 'json' or 'json-ts'"
            );
            log.warn("Ignoring user-configured log format", &[("error", &error)]);
        }
        log.file = (!call.config.log_file.is_empty()).then(|| file.to_owned());
        log.about = about.into();
        log
    }

    pub(crate) fn debug(&self, message: &str, fields: &[(&str, &str)]) {
        if self.is_verbose {
            self.write("debug", message, fields);
        }
    }

    pub(crate) fn info(&self, message: &str, fields: &[(&str, &str)]) {
        self.write("info", message, fields);
    }

    pub(crate) fn warn(&self, message: &str, fields: &[(&str, &str)]) {
        self.write("warn", message, fields);
    }

    pub(crate) fn error(&self, message: &str, fields: &[(&str, &str)]) {
        self.write("error", message, fields);
    }

    fn write(&self, level: &str, message: &str, fields: &[(&str, &str)]) {
        let all = self.fields(self.has_time, level, message, fields);
        let line = if self.is_json { json(&all) } else { text(&all) };
        let _ = writeln!(std::io::stderr(), "{line}");
        let Some(path) = &self.file else {
            return;
        };
        rotate(path);
        // In one format, whatever the configured one is.
        let line = text(&self.fields(true, &level.to_uppercase(), message, fields)) + "\n";
        let file = OpenOptions::new().create(true).append(true).open(path);
        // A log file that cannot be written keeps no pod from its network.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    fn fields(
        &self,
        has_time: bool,
        level: &str,
        message: &str,
        fields: &[(&str, &str)],
    ) -> Vec<(String, String)> {
        let time = has_time.then(|| jiff::Timestamp::now().to_string());
        let time = time.iter().map(|time| ("time", time.as_str()));
        let about = self.about.iter().map(|(key, value)| (*key, value.as_str()));
        time.chain([("level", level), ("msg", message)])
            .chain(about)
            .chain(fields.iter().copied())
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }
}

fn json(fields: &[(String, String)]) -> String {
    let object: Map<String, Value> = fields
        .iter()
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    Value::Object(object).to_string()
}

fn text(fields: &[(String, String)]) -> String {
    let words: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    words.join(" ")
}

fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:@^+&{}[]".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

/// Sets a large file apart, and removes the oldest of those that were.
fn rotate(path: &Path) {
    if !fs::metadata(path).is_ok_and(|file| file.len() > LARGEST) {
        return;
    }
    let numbered = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for number in (1..KEPT).rev() {
        let _ = fs::rename(numbered(number), numbered(number + 1));
    }
    let _ = fs::rename(path, numbered(1));
}
