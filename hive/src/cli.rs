// SPDX-License-Identifier: Apache-2.0

//! The settings of a hive as a command line of clap.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::Settings;
use crate::plan::Plan;
use crate::show::env_name;

impl Plan {
    /// A clap command with one flag for each setting, with help from the doc comments. Give what it matched to
    /// [`Settings::matches`]. Values are checked by the plan, not by clap.
    ///
    /// ```
    /// # use hive::{Hive, Settings};
    /// let command = Hive::new([]).plan(Settings::new())?.command("agent", "CILIUM");
    /// let matches = command.try_get_matches_from(["agent", "--hive-stop-timeout", "3s"])?;
    /// let plan = Hive::new([]).plan(Settings::new().matches(&matches))?;
    /// assert_eq!(plan.config::<hive::HiveOptions>().unwrap().hive_stop_timeout.as_secs(), 3);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn command(&self, name: &'static str, env_prefix: &str) -> Command {
        let mut settings = self.settings();
        settings.sort_by(|a, b| a.name.cmp(&b.name));
        let mut command = Command::new(name);
        for setting in settings {
            let env = setting
                .env
                .map_or_else(|| env_name(env_prefix, &setting.name), str::to_owned);
            let default = match &*setting.value {
                "" => String::new(),
                value => format!(" [default: {value}]"),
            };
            let mut arg = Arg::new(setting.name.clone())
                .long(setting.name.clone())
                .help(format!("{}{default} [env: {env}]", setting.help))
                .long_help(format!("{}\n\n[env: {env}]{default}", setting.docs))
                .hide(setting.hidden || setting.deprecated.is_some())
                .value_parser(ValueParser::string())
                .value_name(setting.kind)
                .action(ArgAction::Append)
                .help_heading(if setting.module.is_root() {
                    "hive".into()
                } else {
                    setting.module.to_string()
                })
                .aliases(setting.aliases.clone());
            if setting.is_bool {
                arg = arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true");
            }
            command = command.arg(arg);
        }
        command
    }
}

impl Settings {
    /// Takes the flags that a [command of a plan](Plan::command) has matched.
    ///
    /// ```
    /// # use hive::{Hive, Settings};
    /// let matches = Hive::new([]).plan(Settings::new())?.command("agent", "").get_matches_from(["agent"]);
    /// let _ = Settings::new().matches(&matches);
    /// # Ok::<_, hive::Report>(())
    /// ```
    #[must_use]
    pub fn matches(mut self, matches: &ArgMatches) -> Self {
        for id in matches.ids() {
            let name = id.as_str();
            if matches.value_source(name) == Some(ValueSource::CommandLine)
                && let Ok(Some(values)) = matches.try_get_many::<String>(name)
            {
                for value in values {
                    self = self.flag(name, value);
                }
            }
        }
        self
    }
}
