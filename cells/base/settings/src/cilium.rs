// SPDX-License-Identifier: Apache-2.0

//! The one list of the settings of Cilium's programs, and their state here.
//!
//! A ConfigMap written for Cilium mounts unchanged. [`CiliumConfig`] declares what a program accepts and does not support;
//! module `unsupported-config` reports those that request a feature. [`keys_without_effect`] are accepted in files and named
//! in one line of the log. Every other unknown key is an error, since it is most likely misspelt. [`reference()`] renders the
//! list.

mod keys;

use std::collections::BTreeMap;

use hive::config::{ConfigValue, Decoder, Field, Raw};
use hive::{Cell, Cfg, Config, Health, HookCtx, Lifecycle};

use keys::{GROUPS, SWITCHES};

/// `skep-agent`, in sets of programs.
pub const AGENT: u8 = 1;
/// `skep-operator`.
pub const OPERATOR: u8 = 2;
/// The servers of `skep-clustermesh-apiserver`.
pub const APISERVER: u8 = 4;

/// What a setting of Cilium's does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The same as in Cilium.
    Supported,
    /// Supported with a difference: always, or under a condition, of which health reports `effect`.
    Partial {
        /// The condition; empty: always.
        when: &'static str,
        /// The difference.
        effect: &'static str,
    },
    /// Accepted, and reported by health unless the value is `off` or empty.
    Unsupported {
        /// The value that requests nothing.
        off: &'static str,
        /// The consequence.
        effect: &'static str,
    },
    /// Accepted without effect, for a reason.
    NoEffect(&'static str),
}

/// Keys with the same state in the same programs.
struct Group {
    programs: u8,
    state: State,
    keys: &'static [&'static str],
}

/// The keys with a state in some of `programs`.
pub fn keys(programs: u8) -> impl Iterator<Item = (&'static str, State)> {
    let groups = GROUPS.iter().filter(move |group| group.programs & programs != 0);
    groups.flat_map(|group| group.keys.iter().map(|key| (*key, group.state)))
}

/// Keys of all programs that `program` does not declare, sorted: its files may have them.
#[must_use]
pub fn keys_without_effect(program: u8) -> Vec<&'static str> {
    let declared: Vec<_> = keys(program)
        .filter(|(_, state)| !matches!(state, State::NoEffect(_)))
        .map(|(key, _)| key)
        .collect();
    let mut others: Vec<_> = keys(u8::MAX)
        .map(|(key, _)| key)
        .filter(|key| !declared.contains(key))
        .collect();
    others.sort_unstable();
    others.dedup();
    others
}

/// Settings that [`hive::Program`] declares, not a cell.
const OF_PROGRAMS: &[&str] = &["config", "config-dir"];

/// Where the list differs from `declared`, the settings of `program` without those of [`CiliumConfig`].
#[must_use]
pub fn differences(program: u8, declared: &[String]) -> Vec<String> {
    let has = |key: &str| OF_PROGRAMS.contains(&key) || declared.iter().any(|name| name == key);
    let is_listed = |programs: u8, name: &str| keys(programs).any(|(key, _)| key == name);
    let unlisted = declared
        .iter()
        .filter(|name| is_listed(u8::MAX, name) && !is_listed(program, name))
        .map(|name| format!("{name}: declared, listed for other programs alone"));
    keys(program)
        .filter_map(|(key, state)| match state {
            State::Supported | State::Partial { .. } if !has(key) => {
                Some(format!("{key}: supported, not declared"))
            }
            State::Unsupported { .. } | State::NoEffect(_) if has(key) => {
                Some(format!("{key}: declared, not supported"))
            }
            _ => None,
        })
        .chain(unlisted)
        .collect()
}

/// Any value; a flag that may stand without one if `SWITCH`.
#[derive(Debug, Clone)]
struct Text<const SWITCH: bool>(String);

impl<const SWITCH: bool> ConfigValue for Text<SWITCH> {
    const KIND: &'static str = if SWITCH { "bool" } else { "string" };
    const IS_BOOL: bool = SWITCH;

    fn parse(text: &str) -> Result<Self, String> {
        if SWITCH {
            return bool::parse(text).map(|value| Self(value.to_string()));
        }
        Ok(Self(text.to_owned()))
    }

    fn render(&self) -> String {
        self.0.clone()
    }

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        Self::parse(&raw.to_text())
    }
}

/// The settings that a program accepts and does not support, hidden from help.
#[derive(Debug, Clone)]
pub struct CiliumConfig<const PROGRAM: u8> {
    values: Vec<String>,
}

const MAX_FIELDS: usize = 128;

struct Fields {
    all: [Field; MAX_FIELDS],
    states: [State; MAX_FIELDS],
    count: usize,
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

const fn is_switch(key: &str) -> bool {
    let mut at = 0;
    while at < SWITCHES.len() {
        if equal(SWITCHES[at], key) {
            return true;
        }
        at += 1;
    }
    false
}

/// Files of the agent may have keys without effect; other programs have them as flags.
const fn fields(program: u8) -> Fields {
    let mut fields = Fields {
        all: [Field::new::<Text<false>>("", ""); MAX_FIELDS],
        states: [State::Supported; MAX_FIELDS],
        count: 0,
    };
    let mut at = 0;
    while at < GROUPS.len() {
        let Group {
            programs,
            state,
            keys,
        } = &GROUPS[at];
        let (is_declared, is_bool, doc) = match state {
            State::Unsupported { off, effect } => (true, equal(off, "false"), *effect),
            State::NoEffect(reason) => (program != AGENT, false, *reason),
            _ => (false, false, ""),
        };
        let mut key = 0;
        while *programs & program != 0 && is_declared && key < keys.len() {
            let name = keys[key];
            let field = if is_bool || is_switch(name) {
                Field::new::<Text<true>>(name, name)
            } else {
                Field::new::<Text<false>>(name, name)
            };
            fields.all[fields.count] = field.doc(doc).hidden();
            fields.states[fields.count] = *state;
            fields.count += 1;
            key += 1;
        }
        at += 1;
    }
    fields
}

impl<const PROGRAM: u8> CiliumConfig<PROGRAM> {
    const ALL: Fields = fields(PROGRAM);

    /// The settings that request a feature, with the consequence, in the order of the list.
    #[must_use]
    pub fn requested(&self) -> Vec<UnsupportedSetting> {
        let fields = Self::FIELDS.iter().zip(&Self::ALL.states).zip(&self.values);
        fields
            .filter_map(|((field, state), value)| match state {
                State::Unsupported { off, effect } if !value.is_empty() && value != off => {
                    Some(UnsupportedSetting {
                        setting: format!("{}={value}", field.flag()),
                        effect,
                    })
                }
                _ => None,
            })
            .collect()
    }
}

impl<const PROGRAM: u8> Config for CiliumConfig<PROGRAM> {
    const FIELDS: &'static [Field] = {
        let fields: &'static Fields = &Self::ALL;
        fields.all.split_at(fields.count).0
    };

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        let mut read = |(index, field): (usize, &Field)| {
            if field.kind() == <Text<true>>::KIND {
                let off = || Ok(Text::<true>("false".to_owned()));
                decoder.field(index, off).map(|value| value.0)
            } else {
                decoder
                    .field(index, || Ok(Text::<false>(String::new())))
                    .map(|value| value.0)
            }
        };
        // All of them, so that all faults are found.
        let values: Vec<_> = Self::FIELDS.iter().enumerate().map(&mut read).collect();
        let values = values.into_iter().collect::<Option<_>>()?;
        Some(Self { values })
    }

    fn render(&self) -> Vec<String> {
        self.values.clone()
    }
}

/// A setting that requests an unsupported feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedSetting {
    /// Key and value: `enable-policy=default`.
    pub setting: String,
    /// The consequence.
    pub effect: &'static str,
}

impl UnsupportedSetting {
    /// A value for which `program` supports a key in part.
    #[must_use]
    pub fn new(program: u8, key: &str, value: impl std::fmt::Display) -> Self {
        let effect = keys(program).find_map(|(name, state)| match state {
            State::Partial { effect, .. } if name == key => Some(effect),
            _ => None,
        });
        Self {
            setting: format!("{key}={value}"),
            effect: effect.unwrap_or("not supported"),
        }
    }
}

/// Requested features that are not supported. Remove the keys, or have another program do it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|unsupported| format!("{}: {}", unsupported.setting, unsupported.effect)).collect::<Vec<_>>().join("; "))]
struct UnsupportedSettings(Vec<UnsupportedSetting>);

/// Reports requested features that are not supported in the health of a module at start; degraded health is logged as well.
pub fn report_unsupported(requested: Vec<UnsupportedSetting>, health: Health, lifecycle: &Lifecycle) {
    let unsupported = UnsupportedSettings(requested);
    lifecycle.on_start("report", move |_: HookCtx| {
        match unsupported.0.len() {
            0 => health.ok("All settings are supported"),
            count => health.degraded(
                format!("{count} settings request unsupported features"),
                &unsupported,
            ),
        }
        async {}
    });
}

/// Module `unsupported-config`: declares [`CiliumConfig`] of a program. Its health is reported by [`reporting_cell`], or by
/// the program, which may find more.
#[must_use]
pub fn cilium_cell<const PROGRAM: u8>() -> Cell {
    Cell::module("unsupported-config", "Settings of unsupported features").config::<CiliumConfig<PROGRAM>>()
}

/// [`cilium_cell`] whose health reports [`CiliumConfig::requested`].
#[must_use]
pub fn reporting_cell<const PROGRAM: u8>() -> Cell {
    fn report<const PROGRAM: u8>(config: Cfg<CiliumConfig<PROGRAM>>, health: Health, lifecycle: Lifecycle) {
        report_unsupported(config.requested(), health, &lifecycle);
    }
    cilium_cell::<PROGRAM>().run(report::<PROGRAM>)
}

/// The list as a table in Markdown, sorted by key.
#[must_use]
pub fn reference() -> String {
    let mut rows: BTreeMap<&str, Vec<(u8, State)>> = BTreeMap::new();
    for group in GROUPS {
        for key in group.keys {
            rows.entry(key).or_default().push((group.programs, group.state));
        }
    }
    let mut text = String::from("| Key | Programs | Here |\n|---|---|---|\n");
    for (key, states) in rows {
        for (programs, state) in states {
            text.push_str(&format!(
                "| `{key}` | {} | {} |\n",
                names(programs),
                describe(state)
            ));
        }
    }
    text
}

fn names(programs: u8) -> String {
    let all = [
        (AGENT, "agent"),
        (OPERATOR, "operator"),
        (APISERVER, "clustermesh-apiserver"),
    ];
    let names = all.iter().filter(|(program, _)| programs & program != 0);
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

fn describe(state: State) -> String {
    match state {
        State::Supported => "supported".to_owned(),
        State::Partial { when: "", effect } => format!("supported; {effect}"),
        State::Partial { when, effect } => format!("supported; reported if {when}: {effect}"),
        State::Unsupported { off: "", effect } => format!("unsupported; reported if set: {effect}"),
        State::Unsupported { off, effect } => format!("unsupported; reported unless `{off}`: {effect}"),
        State::NoEffect(reason) => format!("no effect: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;

    fn requested(args: &[&str]) -> Vec<String> {
        let plan = Hive::new([reporting_cell::<AGENT>()]).plan(Settings::new().args(args.iter().copied()));
        let config = plan.unwrap().config::<CiliumConfig<AGENT>>().unwrap().requested();
        config
            .into_iter()
            .map(|unsupported| unsupported.setting)
            .collect()
    }

    #[test]
    fn a_key_has_one_state_in_a_program() {
        for program in [AGENT, OPERATOR, APISERVER] {
            let mut all: Vec<_> = keys(program).map(|(key, _)| key).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
        assert!(keys_without_effect(AGENT).contains(&"enable-lb-ipam"));
        assert!(!keys_without_effect(OPERATOR).contains(&"enable-lb-ipam"));
    }

    #[test]
    fn only_requests_are_reported() {
        assert_eq!(requested(&[]), [""; 0]);
        assert_eq!(
            requested(&[
                "--enable-vtep=false",
                "--datapath-mode=veth",
                "--enable-wireguard=false"
            ]),
            [""; 0]
        );
        assert_eq!(
            requested(&[
                "--enable-vtep=true",
                "--datapath-mode=netkit",
                "--egress-masquerade-interfaces=eth0,eth1",
                "--enable-wireguard",
            ]),
            [
                "datapath-mode=netkit",
                "egress-masquerade-interfaces=eth0,eth1",
                "enable-wireguard=true",
                "enable-vtep=true",
            ]
        );
    }

    #[test]
    fn the_reference_has_all_programs_of_a_key() {
        let text = reference();

        assert!(text.contains(
            "| `enable-wireguard` | agent | unsupported; reported unless `false`: packets are not encrypted |"
        ));
        assert!(text.contains("| `enable-wireguard` | operator | no effect: only agents encrypt |"));
    }
}
