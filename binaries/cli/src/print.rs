// SPDX-License-Identifier: Apache-2.0

//! Output formats: aligned columns, JSON, YAML, or what a JSONPath selects.

use std::str::FromStr;

use hive_script::text::{
    TabWriter,
    jsonpath::{Template, TemplateError},
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::maps::Entry;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
    /// YAML.
    Yaml,
    /// What the template selects of the JSON. There is one in the life of the program.
    JsonPath(&'static Template),
}

/// A text is no form of the output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    /// It is none of the forms.
    #[error("expected text, json, yaml or jsonpath=TEMPLATE")]
    Unknown,
    /// The template cannot be used. clap prints no causes.
    #[error("{0}")]
    Template(TemplateError),
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => {
                let template = text.strip_prefix("jsonpath=").ok_or(FormatError::Unknown)?;
                let template = template.parse().map_err(FormatError::Template)?;
                Ok(Self::JsonPath(Box::leak(Box::new(template))))
            }
        }
    }
}

/// Entries of a map: two columns, or a JSON object of lists.
pub(crate) fn entries(entries: &[Entry], titles: [&str; 2], format: Format) -> String {
    if format != Format::Text {
        let mut object = Map::new();
        for (key, values) in entries {
            let list = object
                .entry(key.clone())
                .or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.extend(values.iter().map(|value| Value::from(value.as_str())));
            }
        }
        return value(&Value::Object(object), format);
    }
    // Cilium's command ends the last cell with a tab as well: an empty cell follows it, so it is padded.
    let mut table = TabWriter::new();
    table.row([titles[0], titles[1], ""]);
    for (key, values) in entries {
        for (number, value) in values.iter().enumerate() {
            table.row([if number == 0 { key.as_str() } else { "" }, value.as_str(), ""]);
        }
    }
    table.finish()
}

#[derive(Debug)]
pub(crate) struct Table(TabWriter);

impl Table {
    pub(crate) fn new<const N: usize>(titles: [&str; N]) -> Self {
        let mut table = TabWriter::new();
        table.row(titles);
        Self(table)
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.0.row(cells);
    }

    pub(crate) fn finish(self) -> String {
        self.0.finish()
    }
}

pub(crate) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = TabWriter::new();
    table.row(titles.iter().copied());
    for row in rows {
        table.row(row);
    }
    table.finish()
}

/// A document: indented JSON with a newline, or another form, which goes by way of a tree.
pub(crate) fn document<T: Serialize>(document: &T, format: Format) -> Result<String, serde_json::Error> {
    if matches!(format, Format::Yaml | Format::JsonPath(_)) {
        return Ok(value(&serde_json::to_value(document)?, format));
    }
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}

/// As [`document`], of what is a tree already.
pub(crate) fn value(value: &Value, format: Format) -> String {
    if let Format::JsonPath(template) = format {
        return template.render(value) + "\n";
    }
    if format == Format::Yaml
        && let Ok(text) = hive_script::text::yaml::emit_v2(value)
    {
        return text;
    }
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Vec<Entry> {
        vec![
            (
                "10.96.0.10:53/UDP (0)".into(),
                vec!["0.0.0.0:0 (2) (0) [ClusterIP, non-routable] ".into()],
            ),
            (
                "10.96.0.10:53/UDP (1)".into(),
                vec!["10.0.1.5:53/UDP (2) (1)".into()],
            ),
        ]
    }

    #[test]
    fn entries_are_aligned_as_cilium_aligns_them() {
        let text = entries(
            &service(),
            ["SERVICE ADDRESS", "BACKEND ADDRESS (REVNAT_ID) (SLOT)"],
            Format::Text,
        );
        assert_eq!(
            text,
            "SERVICE ADDRESS         BACKEND ADDRESS (REVNAT_ID) (SLOT)             \n\
             10.96.0.10:53/UDP (0)   0.0.0.0:0 (2) (0) [ClusterIP, non-routable]    \n\
             10.96.0.10:53/UDP (1)   10.0.1.5:53/UDP (2) (1)                        \n"
        );
    }

    #[test]
    fn every_column_is_at_least_five_wide() {
        let text = entries(&[("1".into(), vec![String::new()])], ["ID", ""], Format::Text);

        assert_eq!(text, "ID        \n1         \n");
    }

    #[test]
    fn json_is_an_object_of_lists() {
        let value: Value = serde_json::from_str(&entries(&service(), ["", ""], Format::Json)).unwrap();
        assert_eq!(value["10.96.0.10:53/UDP (1)"][0], "10.0.1.5:53/UDP (2) (1)");
    }

    #[test]
    fn a_template_selects_of_the_document() {
        let format: Format = "jsonpath={['10.96.0.10:53/UDP (1)'][0]}".parse().unwrap();

        assert_eq!(entries(&service(), ["", ""], format), "10.0.1.5:53/UDP (2) (1)\n");
        let error = |text: &str| text.parse::<Format>().unwrap_err().to_string();
        assert_eq!(
            error("jsonpath={.a"),
            "invalid JSONPath at character 4: `}` is missing"
        );
        assert_eq!(error("xml"), "expected text, json, yaml or jsonpath=TEMPLATE");
    }

    #[test]
    fn yaml_is_the_same_document() {
        let text = entries(&service()[1..], ["", ""], Format::Yaml);

        assert_eq!(text, "10.96.0.10:53/UDP (1):\n- 10.0.1.5:53/UDP (2) (1)\n");
    }
}
