// SPDX-License-Identifier: Apache-2.0

//! The settings for tools: as JSON, and as a JSON schema for editors and charts.

use super::settings::SettingInfo;
use crate::json::Json;
use crate::plan::Plan;

impl Plan {
    /// The settings as JSON: name, value, origin, kind, module.
    #[must_use]
    pub fn config_json(&self) -> String {
        let settings = self.sorted_settings().into_iter().map(|setting| {
            Json::Object(vec![
                ("name", Json::text(&setting.name)),
                ("value", Json::text(&setting.value)),
                ("origin", Json::text(&setting.origin)),
                ("kind", Json::text(setting.kind)),
                ("module", Json::text(&setting.module)),
            ])
        });
        Json::List(settings.collect()).pretty()
    }

    /// A JSON schema of config files: for editors, and for the values of a Helm chart. The defaults are the
    /// values of this plan, so plan without settings.
    ///
    /// Values may also be written as text, as in a ConfigMap. Keys that no cell knows are refused.
    ///
    /// ```
    /// # use hive::{Hive, Settings};
    /// let schema = Hive::new([]).plan(Settings::new())?.schema("agent");
    /// assert!(schema.contains("\"hive-parallel\": {\n      \"type\": ["));
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[must_use]
    pub fn schema(&self, title: &str) -> String {
        let properties = self
            .sorted_settings()
            .into_iter()
            .map(|setting| (setting.name.clone(), property(&setting)))
            .collect();
        Json::Object(vec![
            ("$schema", Json::text("http://json-schema.org/draft-07/schema#")),
            ("title", Json::text(format!("Settings of {title}"))),
            ("type", Json::text("object")),
            ("properties", Json::Map(properties)),
            ("additionalProperties", Json::Bool(false)),
        ])
        .pretty()
    }

    /// The settings that are shown, by name.
    pub(super) fn sorted_settings(&self) -> Vec<SettingInfo> {
        let mut settings = self.settings();
        settings.retain(|setting| !setting.hidden);
        settings.sort_by(|a, b| a.name.cmp(&b.name));
        settings
    }
}

/// What a value of this kind looks like; text is always possible.
fn property(setting: &SettingInfo) -> Json {
    let types = |types: &[&str]| ("type", Json::List(types.iter().map(Json::text).collect()));
    let pattern = |pattern: &str| ("pattern", Json::text(pattern));
    let mut fields = match setting.kind {
        "bool" => vec![
            types(&["boolean", "string"]),
            pattern("^(1|t|T|TRUE|true|True|0|f|F|FALSE|false|False)$"),
        ],
        "uint" => vec![
            types(&["integer", "string"]),
            pattern("^(\\+?[0-9][0-9A-Fa-f_xXoObB]*)?$"),
            ("minimum", Json::Number(0)),
        ],
        "int" => vec![
            types(&["integer", "string"]),
            pattern("^([+-]?[0-9][0-9A-Fa-f_xXoObB]*)?$"),
        ],
        "float" => vec![types(&["number", "string"])],
        "duration" => vec![
            types(&["string"]),
            pattern("^(\\+?(0|([0-9]*\\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+))?$"),
        ],
        "strings" => vec![
            types(&["array", "string"]),
            (
                "items",
                Json::Object(vec![types(&["string", "number", "boolean"])]),
            ),
        ],
        "map" => vec![
            types(&["object", "string"]),
            (
                "additionalProperties",
                Json::Object(vec![types(&["string", "number", "boolean"])]),
            ),
        ],
        kind if kind.contains('|') => {
            vec![("enum", Json::List(kind.split('|').map(Json::text).collect()))]
        }
        _ => vec![types(&["string", "number", "boolean"])],
    };
    if !setting.docs.is_empty() {
        fields.push(("description", Json::text(setting.docs)));
    }
    if let Some(default) = default(setting) {
        fields.push(("default", default));
    }
    if setting.deprecated.is_some() {
        fields.push(("deprecated", Json::Bool(true)));
    }
    if setting.secret {
        fields.push(("writeOnly", Json::Bool(true)));
    }
    Json::Object(fields)
}

fn default(setting: &SettingInfo) -> Option<Json> {
    let value = setting.value.as_str();
    if setting.secret {
        return None;
    }
    match setting.kind {
        "bool" => value.parse().ok().map(Json::Bool),
        "uint" | "int" => value.parse().ok().map(Json::Integer),
        // Only what JSON can hold.
        "float" => value
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .map(Json::Float),
        "strings" => {
            let items = value.split(',').filter(|item| !item.is_empty());
            Some(Json::List(items.map(Json::text).collect()))
        }
        _ => (!value.is_empty()).then(|| Json::text(value)),
    }
}
