// SPDX-License-Identifier: Apache-2.0

//! A running hive for tools: what a debug endpoint serves.

use std::time::Duration;

use crate::engine::Engine;
use crate::json::Json;

impl Engine {
    /// State, readiness, hooks, jobs, scopes and settings.
    pub(crate) fn to_json(&self) -> String {
        let pending = self.readiness.pending();
        let cause = self.shutdown.cause().map(|cause| cause.to_string());
        Json::Object(vec![
            ("state", Json::text(self.state())),
            ("exit_cause", cause.map_or(Json::Null, Json::Text)),
            ("ready", Json::Bool(pending.is_empty())),
            (
                "waiting_for",
                Json::List(pending.into_iter().map(Json::Text).collect()),
            ),
            ("hooks", self.hooks_json()),
            ("jobs", self.jobs_json()),
            ("scopes", self.scopes_json()),
            ("settings", self.settings_json()),
        ])
        .pretty()
    }

    fn hooks_json(&self) -> Json {
        let hooks = self.hooks().into_iter().map(|hook| {
            Json::Object(vec![
                ("name", Json::text(&hook.name)),
                ("module", Json::text(&hook.module)),
                ("place", Json::text(&hook.place)),
                ("scope", hook.scope.map_or(Json::Null, Json::text)),
                ("state", Json::text(hook.state)),
                ("running_for_us", micros(hook.running_for)),
                ("start_took_us", micros(hook.start_took)),
                ("stop_took_us", micros(hook.stop_took)),
            ])
        });
        Json::List(hooks.collect())
    }

    fn jobs_json(&self) -> Json {
        let text = |text: Option<String>| text.map_or(Json::Null, Json::Text);
        let jobs = self.registry.list().into_iter().map(|job| {
            Json::Object(vec![
                ("name", Json::text(&job.name)),
                ("module", Json::text(&job.module)),
                ("kind", Json::text(job.kind)),
                ("state", Json::text(&job.state)),
                ("age_us", micros(Some(job.age()))),
                ("running_for_us", micros(job.running_for())),
                ("runs", Json::Number(job.runs)),
                ("failures", Json::Number(job.failures)),
                ("last_error", text(job.last_error)),
            ])
        });
        Json::List(jobs.collect())
    }

    fn scopes_json(&self) -> Json {
        let scopes = self.graph.lifecycles.iter().enumerate().skip(1);
        let scopes = scopes.map(|(index, scope)| {
            Json::Object(vec![
                ("name", Json::text(scope.name)),
                ("running", Json::Bool(self.is_scope_running(index as u32))),
            ])
        });
        Json::List(scopes.collect())
    }

    fn settings_json(&self) -> Json {
        let mut settings = Vec::new();
        for state in self.config_states() {
            let Some(config) = self.graph.configs.iter().find(|config| config.slot == state.slot) else {
                continue;
            };
            let module = &self.graph.modules[config.module as usize].path;
            for (setting, value) in config.settings.iter().zip(state.values) {
                let shown = if setting.field.secret && !value.is_empty() {
                    "***".to_owned()
                } else {
                    value
                };
                settings.push(Json::Object(vec![
                    ("name", Json::text(&setting.name)),
                    ("value", Json::Text(shown)),
                    ("origin", Json::text(&setting.origin)),
                    ("module", Json::text(module)),
                ]));
            }
        }
        Json::List(settings)
    }
}

fn micros(time: Option<Duration>) -> Json {
    time.map_or(Json::Null, |time| {
        Json::Number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    })
}
