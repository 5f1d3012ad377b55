// SPDX-License-Identifier: Apache-2.0

//! How large packets may be.

use std::{fmt, net::IpAddr, str::FromStr};

use hive::config::Faults;

use crate::TunnelConfig;

/// MTU if no device says one.
const DEFAULT_MTU: u32 = 1500;

/// How large packets may be.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = MtuConfig::check)]
pub struct MtuConfig {
    /// MTU of cilium_host and of pod interfaces; 0: the smallest MTU of devices.
    #[config(default = 0)]
    pub mtu: u32,
    /// Set the MTU of routes in pods whose interfaces are created by another CNI plugin.
    #[config(default = false, flag = "enable-route-mtu-for-cni-chaining")]
    pub chained_routes: bool,
    /// MTU probing of TCP connections of pods: `blackhole` (on packet loss), `always`, `disabled`, or `unset`
    /// (kernel default). Set in pods by the CNI plugin.
    #[config(default = "blackhole", flag = "packetization-layer-pmtud-mode")]
    pub probing: PathProbing,
}

impl MtuConfig {
    /// MTU of the network between nodes, which interfaces of pods have too; `devices` have these.
    pub fn device(&self, devices: impl Iterator<Item = u32>) -> u32 {
        match self.mtu {
            0 => devices.min().unwrap_or(DEFAULT_MTU),
            mtu => mtu,
        }
    }

    /// MTU of the routes of pods: what a packet inside a tunnel that ends at `endpoint` may have.
    pub fn route(&self, device: u32, tunnel: &TunnelConfig, endpoint: Option<IpAddr>) -> u32 {
        device.saturating_sub(tunnel.overhead(endpoint))
    }

    fn check(&self, faults: &mut Faults) {
        if self.mtu != 0 && !(68..=65_535).contains(&self.mtu) {
            faults.add("mtu", "must be 0, or from 68 to 65535");
        }
    }
}

/// When TCP searches the MTU of a path by probes (RFC 4821).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathProbing {
    /// From the start.
    Always,
    /// When packets vanish.
    #[default]
    Blackhole,
    /// Never.
    Disabled,
    /// As the kernel's default is.
    Unset,
}

impl PathProbing {
    /// Its name for the CNI plugin: empty if it is to leave things as they are.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Blackhole => "blackhole",
            Self::Disabled => "disabled",
            Self::Unset => "",
        }
    }
}

impl fmt::Display for PathProbing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unset => "unset",
            mode => mode.name(),
        })
    }
}

impl FromStr for PathProbing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "blackhole" => Ok(Self::Blackhole),
            "disabled" => Ok(Self::Disabled),
            "unset" | "" => Ok(Self::Unset),
            _ => Err(format!("`{text}` is not always, blackhole, disabled or unset")),
        }
    }
}

hive::config_value!(PathProbing, "always, blackhole, disabled or unset");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RoutingMode;

    #[test]
    fn interfaces_have_the_smallest_mtu_of_devices_unless_configured() {
        let mut config = <MtuConfig as hive::Config>::defaults().unwrap();
        assert_eq!(config.device([9000, 1400, 1500].into_iter()), 1400);
        assert_eq!(config.device(std::iter::empty()), 1500);
        config.mtu = 8900;
        assert_eq!(config.device([1400].into_iter()), 8900);
        config.mtu = 67;
        let mut faults = Faults::default();
        config.check(&mut faults);
        assert_eq!(faults.iter().count(), 1);
    }

    #[test]
    fn routes_leave_room_for_the_tunnel() {
        let config = <MtuConfig as hive::Config>::defaults().unwrap();
        let mut tunnel = <TunnelConfig as hive::Config>::defaults().unwrap();
        let [ipv4, ipv6] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().ok());
        assert_eq!(config.route(1500, &tunnel, ipv4), 1500);
        tunnel.routing_mode = RoutingMode::Tunnel;
        assert_eq!(config.route(1500, &tunnel, ipv4), 1450);
        assert_eq!(config.route(1500, &tunnel, ipv6), 1430);
    }

    #[test]
    fn modes_have_names() {
        for text in ["always", "blackhole", "disabled", "unset"] {
            assert_eq!(text.parse::<PathProbing>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<PathProbing>().unwrap().name(), "");
        assert!(
            "sometimes"
                .parse::<PathProbing>()
                .unwrap_err()
                .contains("`sometimes`")
        );
    }
}
