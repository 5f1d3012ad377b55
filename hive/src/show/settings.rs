// SPDX-License-Identifier: Apache-2.0

//! The settings of a hive: values with their origin, and reference documentation.

use std::borrow::Cow;
use std::fmt::Write;

use crate::config::{DeclaredSetting, Origin};
use crate::module::ModulePath;
use crate::plan::Plan;

/// One setting of a planned hive.
#[derive(Clone, Debug)]
pub struct SettingInfo {
    /// Flag, without dashes in front.
    pub name: String,
    /// Kind of value.
    pub kind: &'static str,
    /// Whether the flag may stand without a value.
    pub is_bool: bool,
    /// The value, as a user would write it; stars if it is secret.
    pub value: String,
    /// Where the value is from.
    pub origin: Origin,
    /// First sentence of the documentation.
    pub help: &'static str,
    /// The documentation.
    pub docs: &'static str,
    /// The module that declares it.
    pub module: ModulePath,
    /// Not shown in help.
    pub hidden: bool,
    /// Never printed.
    pub secret: bool,
    /// What to use instead.
    pub deprecated: Option<&'static str>,
    /// Older names.
    pub aliases: Vec<String>,
    /// Its own environment variable, if it has one.
    pub env: Option<&'static str>,
}

impl Plan {
    /// All settings, in the order of their declaration.
    ///
    /// ```
    /// # use hive::{Hive, Settings};
    /// let plan = Hive::new([]).plan(Settings::new().args(["--hive-stop-timeout=5s"]))?;
    /// let setting = plan.settings().into_iter().find(|setting| setting.name == "hive-stop-timeout").unwrap();
    /// assert_eq!((setting.value.as_str(), setting.origin), ("5s", hive::config::Origin::Flag));
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[must_use]
    pub fn settings(&self) -> Vec<SettingInfo> {
        let mut infos = Vec::new();
        for (config, value) in self.graph.configs.iter().zip(&self.values) {
            let Some(value) = value else { continue };
            let module = &self.graph.modules[config.module as usize].path;
            let values = config.settings.iter().zip(value.value.render());
            infos.extend(values.map(|(setting, value)| info(setting, value, module)));
        }
        infos
    }

    /// The settings as a table: name, value, origin.
    #[must_use]
    pub fn show_config(&self) -> String {
        let settings = self.sorted_settings();
        let width = |text: fn(&SettingInfo) -> &str, least: usize| {
            settings
                .iter()
                .map(|setting| text(setting).chars().count())
                .max()
                .unwrap_or(0)
                .max(least)
        };
        let (name, value) = (
            width(|setting| &setting.name, 4),
            width(|setting| &setting.value, 5).min(40),
        );
        let mut out = format!("{:<name$}    {:<value$}    Origin\n", "Name", "Value");
        for setting in &settings {
            let _ = writeln!(
                out,
                "{:<name$}    {:<value$}    {}",
                setting.name, setting.value, setting.origin
            );
        }
        out
    }

    /// Reference of the settings in Markdown, sorted by name. The defaults are the values of this plan, so
    /// plan without settings for documentation.
    #[must_use]
    pub fn docs(&self, env_prefix: &str) -> String {
        docs(self.sorted_settings(), env_prefix)
    }

    /// The help text of the flags.
    #[must_use]
    pub fn help(&self) -> String {
        help(self.sorted_settings())
    }
}

/// Describes a setting.
fn info(setting: &DeclaredSetting, value: String, module: &ModulePath) -> SettingInfo {
    let field = setting.field;
    SettingInfo {
        name: setting.name.to_string(),
        kind: field.kind,
        is_bool: field.is_bool,
        value: if field.secret && !value.is_empty() {
            "***".into()
        } else {
            value
        },
        origin: setting.origin.clone(),
        help: field.help(),
        docs: field.doc,
        module: module.clone(),
        hidden: field.hidden,
        secret: field.secret,
        deprecated: field.deprecated,
        aliases: setting.aliases().map(Cow::into_owned).collect(),
        env: field.env,
    }
}

/// The reference of settings in Markdown.
fn docs(settings: Vec<SettingInfo>, env_prefix: &str) -> String {
    let mut out = String::from(
        "| Flag | Environment | Kind | Default | Module | Meaning |\n|---|---|---|---|---|---|\n",
    );
    let cell = |text: &str| {
        text.replace('|', "\\|")
            .replace("\n\n", "<br>")
            .replace('\n', " ")
    };
    for setting in settings {
        let env = setting
            .env
            .map_or_else(|| env_name(env_prefix, &setting.name), str::to_owned);
        let default = if setting.value.is_empty() {
            String::new()
        } else {
            format!("`{}`", cell(&setting.value))
        };
        let mut meaning = cell(setting.docs);
        if let Some(note) = setting.deprecated {
            let _ = write!(meaning, " *Deprecated: {}*", cell(note));
        }
        let module = if setting.module.is_root() {
            "hive"
        } else {
            setting.module.as_str()
        };
        let _ = writeln!(
            out,
            "| `--{}` | `{env}` | {} | {default} | {module} | {meaning} |",
            setting.name,
            cell(setting.kind)
        );
    }
    out.push_str("\nNo setting can be changed while the program runs: a changed file takes effect at the next start.\n");
    out
}

/// The settings that a hive shows, sorted by name, also if it cannot be planned with these settings: then with the defaults
/// that can be read.
#[cfg(feature = "run")]
pub(crate) fn declared(hive: &crate::assembly::Hive, settings: &crate::config::Settings) -> Vec<SettingInfo> {
    let mut infos = with_hidden(hive, settings);
    infos.retain(|setting| !setting.hidden);
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    infos
}

/// All settings, also those that are not shown in help.
#[cfg(feature = "run")]
pub(crate) fn with_hidden(
    hive: &crate::assembly::Hive,
    settings: &crate::config::Settings,
) -> Vec<SettingInfo> {
    // What is wrong is reported by the plan.
    let mut findings = Vec::new();
    let mut flat = crate::plan::flatten(hive, &mut findings);
    crate::plan::decode(hive, &mut flat, settings, &mut findings);
    let infos = flat.configs.iter().zip(&flat.values).flat_map(|(config, value)| {
        let module = &flat.modules[config.module as usize].path;
        let mut values = value.iter().flat_map(|value| value.value.render());
        let mut infos = Vec::new();
        for setting in &config.settings {
            infos.push(info(setting, values.next().unwrap_or_default(), module));
        }
        infos
    });
    infos.collect()
}

/// The help text of the flags of a hive that cannot be planned with these settings.
#[cfg(feature = "run")]
pub(crate) fn help_of_unplanned(hive: &crate::assembly::Hive, settings: &crate::config::Settings) -> String {
    help(declared(hive, settings))
}

/// The reference of a hive that cannot be planned with these settings.
#[cfg(feature = "run")]
pub(crate) fn docs_of_unplanned(
    hive: &crate::assembly::Hive,
    settings: &crate::config::Settings,
    env_prefix: &str,
) -> String {
    docs(declared(hive, settings), env_prefix)
}

fn help(mut settings: Vec<SettingInfo>) -> String {
    settings.retain(|setting| setting.deprecated.is_none());
    let left = |setting: &SettingInfo| {
        if setting.is_bool {
            format!("--{}", setting.name)
        } else {
            format!("--{} {}", setting.name, setting.kind)
        }
    };
    let width = settings
        .iter()
        .map(|setting| left(setting).len())
        .max()
        .unwrap_or(0)
        .min(44);
    let mut out = String::new();
    for setting in &settings {
        let default = match &*setting.value {
            "" | "false" => String::new(),
            value => format!(" (default {value})"),
        };
        let _ = writeln!(
            out,
            "  {:<width$}   {}{default}",
            left(setting),
            setting.help.replace('\n', " ")
        );
    }
    out
}

/// `PREFIX_FOO_BAR` for `foo-bar`.
pub(crate) fn env_name(prefix: &str, flag: &str) -> String {
    let name: String = flag
        .chars()
        .map(|c| {
            if c == '-' || c == '.' {
                '_'
            } else {
                c.to_ascii_uppercase()
            }
        })
        .collect();
    let prefix = prefix.trim_end_matches('_');
    if prefix.is_empty() {
        name
    } else {
        format!("{prefix}_{name}")
    }
}
