// SPDX-License-Identifier: Apache-2.0

//! A hive with its conditions decided one way and the other.

use super::flatten::flatten;
use crate::assembly::Hive;

impl Hive {
    /// The hive with every combination of its [conditions](crate::Cell::when), to be planned in a test. With more than
    /// eight conditions: all on, all off, and each one alone on or off.
    ///
    /// ```
    /// # use hive::{Cell, Hive, Settings};
    /// # #[derive(Clone, hive::Config)] struct Config { /// Turns it on.
    /// # enable_probe: bool }
    /// # let cell = Cell::module("probe", "Probes").config::<Config>().when(|config: &Config| config.enable_probe);
    /// for (name, variant) in Hive::new([cell]).variants() {
    ///     variant.plan(Settings::new()).unwrap_or_else(|report| panic!("with {name}: {report}"));
    /// }
    /// ```
    #[must_use]
    pub fn variants(&self) -> Vec<(String, Self)> {
        let flat = flatten(self, &mut Vec::new());
        let mut modules: Vec<String> = flat
            .conditions
            .iter()
            .map(|placed| flat.modules[placed.module as usize].path.to_string())
            .collect();
        modules.dedup();
        let count = modules.len();
        let choices: Vec<Vec<bool>> = if count <= 8 {
            (0..1usize << count)
                .map(|bits| (0..count).map(|bit| bits >> bit & 1 == 1).collect())
                .collect()
        } else {
            let single =
                |base: bool| (0..count).map(move |at| (0..count).map(|bit| (bit == at) != base).collect());
            let all = [vec![true; count], vec![false; count]];
            all.into_iter().chain(single(true)).chain(single(false)).collect()
        };
        choices
            .into_iter()
            .map(|choice| {
                let mut hive = self.clone();
                let mut names = Vec::new();
                for (module, holds) in modules.iter().zip(choice) {
                    names.push(format!("{module}={}", if holds { "on" } else { "off" }));
                    hive = hive.force_condition(module.clone(), holds);
                }
                (names.join(" "), hive)
            })
            .collect()
    }
}
