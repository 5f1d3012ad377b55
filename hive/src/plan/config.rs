// SPDX-License-Identifier: Apache-2.0

//! Reads all configurations, and decides conditions.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::PlannedConfig;
use super::flatten::{Flat, PlacedCondition};
use crate::assembly::Hive;
use crate::config::{DeclaredSetting, Decoder, Fault, Faults, Layers, Origin, Settings, Shared, normalized};
use crate::finding::{Code, Finding};
use crate::key::KeyHasher;
use crate::module::ModulePath;

/// The setting of programs that says what unknown keys are.
const ACCEPTS_UNKNOWN: &str = "config-unknown";

/// Reads all values; returns the arguments that are not flags.
pub(crate) fn decode(
    hive: &Hive,
    flat: &mut Flat,
    settings: &Settings,
    findings: &mut Vec<Finding>,
) -> Vec<String> {
    find_duplicates(flat, findings);
    let open = flat.configs.iter().zip(&flat.values);
    let open = open.filter_map(|(config, fixed)| fixed.is_none().then_some(config));
    let mut layers = Layers::read(settings, open.flat_map(|config| &config.settings));
    let arguments = std::mem::take(&mut layers.arguments);
    let faults = std::mem::take(&mut layers.faults);
    let (foreign, faults): (Vec<_>, Vec<_>) = faults.into_iter().partition(is_foreign);
    let mut settings_here = flat.configs.iter().flat_map(|config| &config.settings);
    let lenient = settings_here.any(|setting| setting.name == ACCEPTS_UNKNOWN);
    for fault in faults {
        let severe = matches!(fault, Fault::UnknownKey { severe: true, .. });
        let mut finding = describe(fault, None);
        if severe && lenient {
            finding = finding.help(format!(
                "remove it, or accept unknown settings with `--{ACCEPTS_UNKNOWN}=warn`"
            ));
        }
        findings.push(finding);
    }
    findings.extend(describe_foreign(foreign));

    for (config, value) in flat.configs.iter_mut().zip(&mut flat.values) {
        let module = &flat.modules[config.module as usize].path;
        decode_one(hive, &layers, config, value, module, findings);
    }
    report_idle_overrides(hive, flat, findings);
    check(flat, findings);
    arguments
}

/// Reads, changes and validates the value of one configuration, unless the program has fixed it.
fn decode_one(
    hive: &Hive,
    layers: &Layers,
    config: &mut PlannedConfig,
    value: &mut Option<Shared>,
    module: &ModulePath,
    findings: &mut Vec<Finding>,
) {
    let mut faults = Faults::default();
    let fixed = value.is_some();
    if fixed {
        for setting in &mut config.settings {
            setting.origin = Origin::Program;
        }
    } else {
        let mut decoder = Decoder::new(layers, &mut config.settings);
        *value = config.config.decode(&mut decoder, &mut faults);
        let bad = decoder.faults.into_iter();
        findings.extend(bad.map(|fault| describe(fault, Some((config.place, module)))));
    }
    let Some(shared) = value else { return };
    let overridden = apply_overrides(hive, config, shared);
    if fixed || overridden {
        faults = Faults::default();
        shared.value.validate(&mut faults);
    }
    for (flag, message) in faults.iter() {
        let setting = config
            .settings
            .iter()
            .find(|setting| setting.name == flag || setting.field.flag == flag);
        let declared = |finding: Finding| {
            let name = config.config.name.to_string();
            finding.involve("declared", name, Some(config.place), module)
        };
        let Some(setting) = setting else {
            findings.push(declared(misspelt(flag, message, &config.settings)));
            continue;
        };
        let (name, origin) = (&setting.name, &setting.origin);
        findings.push(declared(Finding::error(
            Code::Invalid,
            format!("`--{name}` (from {origin}): {message}"),
        )));
    }
}

/// A fault of a flag that its configuration does not have: a mistake in the program.
fn misspelt<'a>(
    flag: &str,
    message: &str,
    settings: impl IntoIterator<Item = &'a DeclaredSetting>,
) -> Finding {
    let known: Vec<&str> = settings.into_iter().map(|setting| &*setting.name).collect();
    let finding = Finding::error(
        Code::Invalid,
        format!("{message} (reported for `--{flag}`, which the configuration does not declare)"),
    );
    match crate::similar::closest(flag, known.into_iter()) {
        Some(near) => finding.help(format!("in the program: write `faults.add(\"{near}\", ...)`")),
        None => finding,
    }
}

/// Changes a value as tests ask; whether any did.
fn apply_overrides(hive: &Hive, config: &mut PlannedConfig, shared: &mut Shared) -> bool {
    let key = config.config.key;
    let overrides = || hive.config_overrides.iter().filter(|change| change.key == key);
    if overrides().next().is_none() {
        return false;
    }
    let before = shared.value.render();
    *shared = shared
        .value
        .changed(&mut |value| overrides().for_each(|change| (change.change)(value)));
    let after = shared.value.render();
    for ((old, new), setting) in before.iter().zip(after).zip(&mut config.settings) {
        if *old != new {
            setting.origin = Origin::Override;
        }
    }
    true
}

/// Reports overrides of configurations that no cell has.
fn report_idle_overrides(hive: &Hive, flat: &Flat, findings: &mut Vec<Finding>) {
    for change in &hive.config_overrides {
        if !flat.configs.iter().any(|config| config.config.key == change.key) {
            let message = format!(
                "override_config of `{}` changes nothing: no cell has this configuration",
                change.name
            );
            findings.push(Finding::error(Code::BadOverride, message).involve(
                "asked by",
                format!("override_config::<{}>", change.name),
                Some(change.place),
                &ModulePath::root(),
            ));
        }
    }
}

fn find_duplicates(flat: &Flat, findings: &mut Vec<Finding>) {
    let mut owners: HashMap<Cow<'_, str>, usize, KeyHasher> =
        HashMap::with_capacity_and_hasher(flat.configs.len(), KeyHasher::default());
    for (number, config) in flat.configs.iter().enumerate() {
        if flat.values[number].is_some() {
            continue;
        }
        for field in &config.settings {
            let names = std::iter::once(Cow::Borrowed(&*field.name)).chain(field.aliases());
            for name in names {
                let name = normalized(name);
                let Some(first) = owners.insert(name.clone(), number) else {
                    continue;
                };
                let first = &flat.configs[first];
                findings.push(
                    Finding::error(
                        Code::DuplicateFlag,
                        format!("two cells declare the flag `--{name}`"),
                    )
                    .involve(
                        "first",
                        first.config.name.to_string(),
                        Some(first.place),
                        &flat.modules[first.module as usize].path,
                    )
                    .involve(
                        "second",
                        config.config.name.to_string(),
                        Some(config.place),
                        &flat.modules[config.module as usize].path,
                    )
                    .help(
                        "rename one, or put `.config_prefix(\"...\")` on the cell that includes the second",
                    ),
                );
            }
        }
    }
}

/// Whether a fault is a key of files that several programs share, and like none of this one's.
fn is_foreign(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::UnknownKey {
            similar: None,
            severe: false,
            ..
        }
    )
}

/// One finding for all keys of a directory or file: a ConfigMap may have a hundred that are for others.
fn describe_foreign(faults: Vec<Fault>) -> impl Iterator<Item = Finding> {
    let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for fault in faults {
        if let Fault::UnknownKey { key, origin, .. } = fault {
            let source = match &origin {
                Origin::Directory(file) => {
                    let directory = file.parent().unwrap_or(Path::new(""));
                    format!("dir {}", directory.display())
                }
                Origin::File { path, .. } => format!("file {}", path.display()),
                other => other.to_string(),
            };
            sources.entry(source).or_default().push(format!("`{key}`"));
        }
    }
    sources.into_iter().map(|(source, keys)| {
        let number = match keys.len() {
            1 => String::new(),
            several => format!("{several} "),
        };
        let plural = if keys.len() == 1 { "" } else { "s" };
        let keys = keys.join(", ");
        Finding::warning(
            Code::UnknownKey,
            format!("{number}unknown setting{plural} {keys} (from {source})",),
        )
    })
}

fn describe(fault: Fault, place: Option<(&'static std::panic::Location<'static>, &ModulePath)>) -> Finding {
    let (finding, what) = match fault {
        Fault::UnknownFlag { text, help } => {
            let mut finding = Finding::error(Code::UnknownFlag, format!("unknown argument `{text}`"));
            if let Some(help) = help {
                finding = finding.help(help);
            }
            (finding, None)
        }
        Fault::UnknownKey {
            key,
            origin,
            similar,
            severe,
        } => {
            let message = format!("unknown setting `{key}` (from {origin})");
            let mut finding = if severe {
                Finding::error(Code::UnknownKey, message)
            } else {
                Finding::warning(Code::UnknownKey, message)
            };
            if let Some(similar) = similar {
                finding = finding.help(format!("did you mean `{similar}`?"));
            }
            (finding, None)
        }
        Fault::Value {
            flag,
            origin,
            message,
            secret,
        } => {
            let message = if secret {
                "the value has the wrong form (it is secret and not shown)".to_owned()
            } else {
                message
            };
            (
                Finding::error(Code::BadValue, format!("`{flag}` (from {origin}): {message}")),
                Some(flag),
            )
        }
        Fault::Source { what, message } => {
            let message = format!("cannot read {what}: {message}");
            (Finding::error(Code::BadSource, message), None)
        }
        Fault::Deprecated { key, origin, instead } => {
            let message = format!("`{key}` (from {origin}) is deprecated");
            (
                Finding::warning(Code::Deprecated, message).help(instead),
                Some(key),
            )
        }
    };
    match (place, what) {
        (Some((place, module)), Some(what)) => finding.involve("declared", what, Some(place), module),
        _ => finding,
    }
}

/// Runs the checks between configurations.
fn check(flat: &Flat, findings: &mut Vec<Finding>) {
    for (check, module, _) in &flat.checks {
        let module = &flat.modules[*module as usize].path;
        let mut values = Vec::new();
        let mut broken = false;
        for (key, name) in &check.keys {
            match flat.configs.iter().position(|config| config.config.key == *key) {
                Some(config) => match &flat.values[config] {
                    Some(shared) => values.push(shared.value.as_any()),
                    None => broken = true,
                },
                None => {
                    broken = true;
                    let message = format!("a check needs the configuration `{name}`, which no cell has");
                    findings.push(Finding::error(Code::MissingConfig, message).involve(
                        "needed by",
                        "check",
                        Some(check.place),
                        module,
                    ));
                }
            }
        }
        if broken {
            continue;
        }
        let mut faults = Faults::default();
        (check.check)(&values, &mut faults);
        for (flag, message) in faults.iter() {
            let mut configs = flat.configs.iter();
            let known = configs.any(|config| {
                let mut settings = config.settings.iter();
                settings.any(|setting| setting.name == flag || setting.field.flag == flag)
            });
            let finding = if known {
                Finding::error(Code::Invalid, format!("`--{flag}`: {message}"))
            } else {
                let settings = flat.configs.iter().flat_map(|config| &config.settings);
                misspelt(flag, message, settings)
            };
            findings.push(finding.involve("checked by", "check", Some(check.place), module));
        }
    }
}

/// Decides the conditions, and what they disable.
pub(crate) fn decide(hive: &Hive, flat: &mut Flat, findings: &mut Vec<Finding>) {
    report_idle_decisions(hive, flat, findings);
    if flat.conditions.is_empty() {
        return;
    }
    for index in 0..flat.conditions.len() {
        let placed = &flat.conditions[index];
        let outer = placed
            .parent
            .is_none_or(|parent| flat.conditions[parent as usize].holds);
        let holds = holds(hive, flat, placed, findings);
        flat.conditions[index].holds = outer && holds;
    }
    for node in &mut flat.nodes {
        node.enabled = node
            .condition
            .is_none_or(|condition| flat.conditions[condition as usize].holds);
    }
    for (module, condition) in flat.modules.iter_mut().zip(&flat.module_conditions) {
        module.enabled = condition.is_none_or(|condition| flat.conditions[condition as usize].holds);
    }
}

/// Whether a condition holds on its own.
fn holds(hive: &Hive, flat: &Flat, placed: &PlacedCondition, findings: &mut Vec<Finding>) -> bool {
    let module = &flat.modules[placed.module as usize].path;
    let mut forced = hive.forced.iter().rev();
    if let Some(forced) = forced.find(|forced| forced.module == module.as_str()) {
        return forced.holds;
    }
    let mut configs = flat.configs.iter();
    if let Some(config) = configs.position(|config| config.config.key == placed.condition.key) {
        // A value that could not be read is reported already.
        let value = flat.values[config].as_ref();
        return value
            .and_then(|shared| (placed.condition.holds)(shared.value.as_any()))
            .unwrap_or(true);
    }
    let message = format!(
        "a condition needs the configuration `{}`, which no cell has",
        placed.condition.name
    );
    findings.push(Finding::error(Code::MissingConfig, message).involve(
        "needed by",
        "when",
        Some(placed.condition.place),
        module,
    ));
    true
}

/// Reports decisions about modules that have no condition.
fn report_idle_decisions(hive: &Hive, flat: &Flat, findings: &mut Vec<Finding>) {
    let path_of = |placed: &PlacedCondition| flat.modules[placed.module as usize].path.clone();
    for forced in &hive.forced {
        let mut conditions = flat.conditions.iter();
        if conditions.any(|placed| path_of(placed).as_str() == forced.module) {
            continue;
        }
        let message = format!(
            "force_condition changes nothing: no module `{}` has a condition",
            forced.module
        );
        let mut finding = Finding::error(Code::BadOverride, message).involve(
            "asked by",
            format!("force_condition({:?})", forced.module),
            Some(forced.place),
            &ModulePath::root(),
        );
        let known: Vec<ModulePath> = flat.conditions.iter().map(path_of).collect();
        let known = known.iter().map(ModulePath::as_str);
        if let Some(near) = crate::similar::closest(&forced.module, known) {
            finding = finding.help(format!("did you mean `{near}`?"));
        }
        findings.push(finding);
    }
}
