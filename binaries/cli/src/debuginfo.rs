// SPDX-License-Identifier: Apache-2.0

//! `skep debuginfo`: what helps to find a fault, as a document.

use std::{error::Error, fmt::Write as _, fs, path::PathBuf};

use clap::Args;
use jiff::Zoned;
use serde_json::Value;
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::Failure,
    own::Own,
    print::{self, Format},
};

/// Options of `skep debuginfo`.
#[derive(Debug, Args)]
pub(crate) struct DebugInfoOptions {
    /// Write files, not the standard output.
    #[arg(short, long)]
    file: bool,
    /// Write a file for each section.
    #[arg(long)]
    file_per_command: bool,
    /// Directory of the files; default: the current one.
    #[arg(long, value_name = "DIR")]
    output_directory: Option<PathBuf>,
}

/// A form of the document.
#[derive(Clone, Copy)]
enum Form {
    Markdown,
    Html,
    /// JSON, or what a template selects of it.
    Data(Format),
}

impl Form {
    fn of(format: Format) -> Result<Self, Failure> {
        match format {
            Format::Text | Format::Unknown("markdown") => Ok(Self::Markdown),
            Format::Unknown("html") => Ok(Self::Html),
            Format::Json | Format::JsonPath(_) => Ok(Self::Data(format)),
            Format::Yaml => Err(invalid("yaml")),
            Format::Unknown(name) => Err(invalid(name)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Markdown => "markdown",
            Self::Html => "html",
            Self::Data(Format::Json) => "json",
            Self::Data(_) => "jsonpath",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Markdown => "md",
            form => form.name(),
        }
    }
}

fn invalid(name: &str) -> Failure {
    Failure::Bare(format!("{name} is not a valid output format; exiting"))
}

/// A part of the document.
struct Section {
    title: String,
    text: String,
}

pub(crate) fn run(
    agent: &Client,
    own: &Own,
    options: &DebugInfoOptions,
    formats: &[Format],
) -> Result<String, Box<dyn Error>> {
    let mut forms = Vec::new();
    for format in formats {
        forms.push(Form::of(*format)?);
    }
    if forms.is_empty() {
        forms.push(Form::Markdown);
    }
    let to_files = options.file || options.file_per_command;
    let refused = |text: &str| Err(Failure::Bare(text.to_owned()).into());
    if options.output_directory.is_some() && !to_files {
        return refused("Invalid options: output-directory requires file or file-per-command");
    }
    if !to_files && forms.iter().any(|form| matches!(form, Form::Html)) {
        return refused("Invalid options: html output requires file");
    }
    if options.file_per_command && forms.iter().any(|form| matches!(form, Form::Data(_))) {
        return refused("Invalid options: json and jsonpath output cannot be written per command");
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("Warning, some of the BPF commands might fail when run as not root");
    }
    let info: Value =
        agent::get(agent, &agent::GET_DEBUG_INFO, "").map_err(|error| Failure::Bare(error.to_string()))?;
    let mut sections = None;
    let mut out = String::new();
    let stamp = Zoned::now().strftime("%Y%m%d-%H%M%S%.3f%z").to_string();
    for form in forms {
        let texts = match form {
            Form::Data(format) => vec![(String::new(), print::value(&info, format))],
            form => documents(
                sections.get_or_insert_with(|| collected(own, &info)),
                form,
                options.file_per_command,
            ),
        };
        if !to_files {
            texts.into_iter().for_each(|(_, text)| out.push_str(&text));
            continue;
        }
        for (part, text) in texts {
            let name = format!("cilium-debuginfo-{stamp}{part}.{}", form.extension());
            let path = options.output_directory.clone().unwrap_or_default().join(name);
            fs::write(&path, text)
                .map_err(|error| Failure::Bare(format!("cannot write {}: {error}", path.display())))?;
            let _ = writeln!(out, "{} output at {}", form.name(), path.display());
        }
    }
    Ok(out)
}

/// Files of a form: the suffix of the name, and the text.
fn documents(sections: &[Section], form: Form, has_one_each: bool) -> Vec<(String, String)> {
    let rendered = |sections: &[Section]| match form {
        Form::Html => html(sections),
        _ => markdown(sections),
    };
    if !has_one_each {
        return vec![(String::new(), rendered(sections))];
    }
    let suffix = |title: &str| format!("-{}", title.to_lowercase().replace([' ', '/'], "-"));
    sections
        .iter()
        .map(|section| (suffix(&section.title), rendered(std::slice::from_ref(section))))
        .collect()
}

fn markdown(sections: &[Section]) -> String {
    let mut out = "# Cilium debug information\n\n".to_owned();
    for Section { title, text } in sections {
        let _ = write!(out, "#### {title}\n\n```\n{}\n```\n\n\n", text.trim_end());
    }
    out
}

fn html(sections: &[Section]) -> String {
    let escaped = |text: &str| {
        let text = text.replace('&', "&amp;");
        text.replace('<', "&lt;").replace('>', "&gt;")
    };
    let mut out = "<!DOCTYPE html>\n<html>\n<head><title>Cilium debug information</title></head>\n<body>\n\
                   <h1>Cilium debug information</h1>\n"
        .to_owned();
    for Section { title, text } in sections {
        let (title, text) = (escaped(title), escaped(text.trim_end()));
        let _ = writeln!(out, "<h4>{title}</h4>\n<pre>{text}</pre>");
    }
    out + "</body>\n</html>\n"
}

fn collected(own: &Own, info: &Value) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |title: String, text: String| sections.push(Section { title, text });
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => format!("{value:#}"),
    };
    add("Cilium version".into(), text(&info["cilium-version"]));
    add("Kernel version".into(), text(&info["kernel-version"]));
    add("Cilium status".into(), own.text(&["status", "--verbose"]));
    let settings = agent::texts(&info["environment-variables"]).join("\n");
    add("Cilium environment keys".into(), settings);
    add("Endpoint list".into(), own.text(&["endpoint", "list"]));
    for endpoint in info["endpoint-list"].as_array().into_iter().flatten() {
        let id = &*endpoint["id"].to_string();
        for (title, words) in [
            ("BPF Policy Get", &["bpf", "policy", "get"][..]),
            ("BPF CT List", &["bpf", "ct", "list"]),
            ("Endpoint Get", &["endpoint", "get"]),
            ("Endpoint Health", &["endpoint", "health"]),
            ("Endpoint Log", &["endpoint", "log"]),
        ] {
            add(format!("{title} {id}"), own.text(&[words, &[id]].concat()));
        }
        let identity = &endpoint["status"]["identity"]["id"];
        if !identity.is_null() {
            let identity = &*identity.to_string();
            add(
                format!("Identity get {identity}"),
                own.text(&["identity", "get", identity]),
            );
        }
    }
    add("Service list".into(), own.text(&["service", "list"]));
    add("Policy get".into(), own.text(&["policy", "get"]));
    add("Cilium memory map".into(), text(&info["cilium-memory-map"]));
    for (name, found) in info["subsystem"].as_object().into_iter().flatten() {
        add(name.clone(), text(found));
    }
    add("Cilium encryption".into(), encryption(&info["encryption"]));
    sections
}

/// WireGuard as `wg show` prints it.
fn encryption(found: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    };
    let interfaces = &found["wireguard"]["interfaces"];
    for interface in interfaces.as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "##### WireGuard\ninterface: {}\n  public key: {}\n  listening port: {}",
            text(&interface["name"]),
            text(&interface["public-key"]),
            text(&interface["listen-port"]),
        );
        for peer in interface["peers"].as_array().into_iter().flatten() {
            let _ = writeln!(
                out,
                "\npeer: {}\n  endpoint: {}\n  allowed ips: {}\n  latest handshake: {}\n  transfer: {} B received, {} B sent",
                text(&peer["public-key"]),
                text(&peer["endpoint"]),
                agent::texts(&peer["allowed-ips"]).join(", "),
                text(&peer["last-handshake-time"]),
                text(&peer["transfer-rx"]),
                text(&peer["transfer-tx"]),
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_documents() {
        let sections = [Section {
            title: "Cilium version".to_owned(),
            text: "1 < 2\n".to_owned(),
        }];

        assert_eq!(
            markdown(&sections),
            "# Cilium debug information\n\n#### Cilium version\n\n```\n1 < 2\n```\n\n\n"
        );
        assert!(html(&sections).contains("<h4>Cilium version</h4>\n<pre>1 &lt; 2</pre>\n"));
        let files = documents(&sections, Form::Markdown, true);
        assert_eq!(files[0].0, "-cilium-version");
    }
}
