// SPDX-License-Identifier: Apache-2.0

//! Settings of policies.

use std::{fmt, str::FromStr};

use skep_base_settings::PacketConfig;
use skep_policy_model::{PolicySettings, settings::Enforcement};

/// Which policies are enforced, and how.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Policy enforcement: `default` in the directions that a rule selects an endpoint for, `always`, `never`.
    #[config(default = "default")]
    pub enable_policy: PolicyMode,
    /// When the host may reach endpoints of this node whatever policies say: `auto` (under Kubernetes), `always`, `policy`.
    #[config(default = "auto")]
    pub allow_localhost: AllowLocalhost,
    /// Peers of rules that name no cluster are of the own one.
    #[config(default = true)]
    pub policy_default_local_cluster: bool,
    /// Accept rules that leave the rest of their direction allowed.
    #[config(default = true, hidden)]
    pub enable_non_default_deny_policies: bool,
    /// Accept and resolve rules as Cilium does where it allows more than they say.
    #[config(default = false, hidden)]
    pub policy_fail_open_corners: bool,
}

/// An invalid value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnknownWord {
    text: String,
    expected: &'static str,
}

macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $expected:literal, $($variant:ident = $word:literal),*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($variant),*
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text.to_ascii_lowercase().as_str() {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownWord { text: text.to_owned(), expected: $expected }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $word),*
                })
            }
        }

        hive::config_value!($type, $expected);
    };
}

words!(
    /// Value of `enable-policy`.
    PolicyMode, "default, always or never", Default = "default", Always = "always", Never = "never"
);
words!(
    /// Value of `allow-localhost`.
    AllowLocalhost, "auto, always or policy", Auto = "auto", Always = "always", Policy = "policy"
);

impl From<PolicyMode> for Enforcement {
    fn from(mode: PolicyMode) -> Self {
        match mode {
            PolicyMode::Default => Self::Default,
            PolicyMode::Always => Self::Always,
            PolicyMode::Never => Self::Never,
        }
    }
}

impl Config {
    pub(crate) fn settings(
        &self,
        cluster: &str,
        packets: &PacketConfig,
        nodes: &skep_ipcache::Config,
        dual_stack: bool,
    ) -> PolicySettings {
        PolicySettings {
            cluster: cluster.into(),
            enforcement: self.enable_policy.into(),
            allow_localhost: self.allow_localhost != AllowLocalhost::Policy,
            icmp_rules: packets.icmp_rules,
            extended_protocols: packets.extended_protocols,
            host_firewall: packets.host_firewall,
            node_selector_labels: nodes.node_labels,
            default_local_cluster: self.policy_default_local_cluster,
            non_default_deny: self.enable_non_default_deny_policies,
            dual_stack,
            fail_open: self.policy_fail_open_corners,
            ..PolicySettings::default()
        }
    }
}
