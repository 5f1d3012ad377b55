// SPDX-License-Identifier: Apache-2.0

//! Output formats: aligned columns, JSON, YAML, or what a JSONPath selects.

use std::{
    io::{self, BufRead as _, Write as _},
    str::FromStr,
};

use hive_script::text::{
    TabWriter, json,
    jsonpath::{Template, TemplateError},
    yaml,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{maps::Entry, models};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
    /// YAML.
    Yaml,
    /// What the template selects of the JSON. There is one in the life of the program.
    JsonPath(&'static Template),
    /// None of the forms of most commands.
    Unknown(&'static str),
}

impl FromStr for Format {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => match text.strip_prefix("jsonpath=") {
                Some(template) => Ok(Self::JsonPath(Box::leak(Box::new(template.parse()?)))),
                None => Ok(Self::Unknown(Box::leak(text.into()))),
            },
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
    // Cilium's command ends the last cell of a row with a tab: an empty cell follows it, so it is padded.
    let mut table = TabWriter::new();
    table.row(titles);
    for (key, values) in entries {
        for (number, value) in values.iter().enumerate() {
            table.row([if number == 0 { key.as_str() } else { "" }, value.as_str(), ""]);
        }
    }
    table.finish()
}

#[derive(Debug, Default)]
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

    /// A row whose last cell is padded, too.
    pub(crate) fn padded<const N: usize>(&mut self, cells: [&str; N]) {
        self.0.row(cells.into_iter().chain([""]));
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

/// Asks a question; whether the answer is yes.
pub(crate) fn confirmed(question: &str) -> io::Result<bool> {
    print!("{question}");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// A document: indented JSON with a newline and an empty line, as of Cilium's command, or another form.
pub(crate) fn document<T: Serialize>(document: &T, format: Format) -> Result<String, serde_json::Error> {
    if matches!(format, Format::Yaml | Format::JsonPath(_)) {
        return Ok(value(&serde_json::to_value(document)?, format));
    }
    Ok(json::indented(document)? + "\n\n")
}

/// As [`document`], of what is a tree already.
pub(crate) fn value(value: &Value, format: Format) -> String {
    if let Format::JsonPath(template) = format {
        return template.render(value) + "\n";
    }
    if format == Format::Yaml
        && let Ok(text) = yaml::emit_v3(value)
    {
        return text + "\n";
    }
    json::indented(value).unwrap_or_default() + "\n\n"
}

/// As [`value`], of an answer of the API: members are sorted, YAML has the fields of `model`.
pub(crate) fn api(answer: &Value, model: &str, format: Format) -> String {
    if format == Format::Yaml
        && let Ok(text) = models::yaml(answer, model)
    {
        return text + "\n";
    }
    let mut sorted = answer.clone();
    sorted.sort_all_objects();
    value(&sorted, format)
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
            "SERVICE ADDRESS         BACKEND ADDRESS (REVNAT_ID) (SLOT)\n\
             10.96.0.10:53/UDP (0)   0.0.0.0:0 (2) (0) [ClusterIP, non-routable]    \n\
             10.96.0.10:53/UDP (1)   10.0.1.5:53/UDP (2) (1)                        \n"
        );
    }

    #[test]
    fn every_column_is_at_least_five_wide() {
        let text = entries(&[("1".into(), vec![String::new()])], ["ID", ""], Format::Text);

        assert_eq!(text, "ID   \n1         \n");
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
        assert_eq!("xml".parse(), Ok(Format::Unknown("xml")));
    }

    #[test]
    fn yaml_is_the_same_document() {
        let text = entries(&service()[1..], ["", ""], Format::Yaml);

        assert_eq!(text, "10.96.0.10:53/UDP (1):\n    - 10.0.1.5:53/UDP (2) (1)\n\n");
    }
}
