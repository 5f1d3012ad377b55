// SPDX-License-Identifier: Apache-2.0

//! Helper of the tests of this crate.

use hive::config::Faults;

/// Returns what `check` reports of the defaults after `edit`, a line `flag: message` each.
pub(crate) fn faults<C: hive::Config>(check: impl Fn(&C, &mut Faults), edit: impl Fn(&mut C)) -> String {
    let mut config = C::defaults().unwrap();
    edit(&mut config);
    let mut faults = Faults::default();
    check(&config, &mut faults);
    let texts: Vec<String> = faults
        .iter()
        .map(|(flag, text)| format!("{flag}: {text}"))
        .collect();
    texts.join("\n")
}
