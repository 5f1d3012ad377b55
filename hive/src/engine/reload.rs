// SPDX-License-Identifier: Apache-2.0

//! Settings that change while the hive runs.

use super::Engine;

/// What a [reload](crate::Controller::reload) changed.
///
/// ```
/// # use hive::{Hive, Settings};
/// let built = Hive::new([]).plan(Settings::new())?.build()?;
/// let reload = built.controller().reload(Settings::new().args(["--hive-stop-timeout=3s"]))?;
/// assert_eq!(reload.drift, ["hive-stop-timeout"]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// Settings whose new values are in use.
    pub applied: Vec<String>,
    /// Settings that differ now but need a restart.
    pub drift: Vec<String>,
}

impl Engine {
    /// Reads the settings again; reloadable ones take effect.
    pub(crate) fn reload(&self, settings: crate::config::Settings) -> Result<Reload, crate::finding::Report> {
        let plan = self.hive.clone().plan(settings)?;
        let mut result = Reload::default();
        let mut live = crate::lock(&self.configs);
        for ((config, value), live) in plan.graph.configs.iter().zip(&plan.values).zip(live.iter_mut()) {
            let Some(value) = value else { continue };
            let mut values = live.values();
            let mut applied = false;
            for ((setting, old), new) in config.settings.iter().zip(&mut values).zip(value.value.render()) {
                if *old == new {
                    continue;
                }
                if setting.field.reloadable && live.reloader.is_some() {
                    *old = new;
                    applied = true;
                    result.applied.push(setting.name.to_string());
                } else {
                    result.drift.push(setting.name.to_string());
                }
            }
            if applied && let Some(reloader) = &live.reloader {
                reloader(value.value.as_any());
                live.reloaded = Some(values);
            }
        }
        for setting in &result.drift {
            tracing::warn!(%setting, "Setting has changed and needs a restart");
        }
        Ok(result)
    }
}
