// SPDX-License-Identifier: Apache-2.0

//! Keys and values of the maps as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use skep_bpf_maps::{
    event::MetricsKey,
    lb::{
        AFFINITY_NETNS_COOKIE, Affinity, Affinity4Key, Affinity6Key, AffinityMatchKey, Backend4, Backend6,
        BackendKey, ReverseNat4, ReverseNat6, ReverseNatKey, ReverseSk4, ReverseSk4Key, ReverseSk6,
        ReverseSk6Key, Scope, Service4Key, Service6Key, ServiceValue, Skip4Key, Skip6Key, SourceRange4Key,
        SourceRange6Key,
    },
    node::{IPCACHE_STATIC_BITS, IpcacheKey, IpcacheValue},
};

/// How a key or a value is shown.
pub(super) trait Text {
    fn text(&self) -> String;
}

/// Values of maps whose keys say everything.
impl Text for u8 {
    fn text(&self) -> String {
        String::new()
    }
}

impl Text for Service4Key {
    fn text(&self) -> String {
        frontend_text(self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

impl Text for Service6Key {
    fn text(&self) -> String {
        frontend_text(self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

impl Text for ServiceValue {
    fn text(&self) -> String {
        format!(
            "{} {}[{}] ({}) [{:#x} {:#x}]",
            self.target,
            self.count,
            self.qcount,
            self.rev_nat.get(),
            self.flags,
            self.flags2
        )
    }
}

impl Text for BackendKey {
    fn text(&self) -> String {
        self.id.to_string()
    }
}

impl Text for Backend4 {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.addr(), self.port.get());
        backend_text(address, self.proto, self.state, self.zone)
    }
}

impl Text for Backend6 {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.addr(), self.port.get());
        backend_text(address, self.proto, self.state, self.zone)
    }
}

impl Text for ReverseNatKey {
    fn text(&self) -> String {
        self.rev_nat.get().to_string()
    }
}

impl Text for ReverseNat4 {
    fn text(&self) -> String {
        SocketAddr::new(self.addr(), self.port.get()).to_string()
    }
}

impl Text for ReverseNat6 {
    fn text(&self) -> String {
        SocketAddr::new(self.addr(), self.port.get()).to_string()
    }
}

impl Text for Affinity4Key {
    fn text(&self) -> String {
        let [a, b, c, d, ..] = self.client;
        let address = Ipv4Addr::new(a, b, c, d);
        client_text(self.flags, self.client, address.into(), self.rev_nat.get())
    }
}

impl Text for Affinity6Key {
    fn text(&self) -> String {
        let [a, b, c, d, e, f, g, h, ..] = self.client;
        let address = Ipv6Addr::from(self.client);
        client_text(
            self.flags,
            [a, b, c, d, e, f, g, h],
            address.into(),
            self.rev_nat.get(),
        )
    }
}

impl Text for Affinity {
    fn text(&self) -> String {
        format!("{} {}", self.backend_id, self.last_used)
    }
}

impl Text for AffinityMatchKey {
    fn text(&self) -> String {
        format!("{} {}", self.backend_id, self.rev_nat.get())
    }
}

impl Text for SourceRange4Key {
    fn text(&self) -> String {
        range_text(self.cidr(), self.rev_nat.get())
    }
}

impl Text for SourceRange6Key {
    fn text(&self) -> String {
        range_text(self.cidr(), self.rev_nat.get())
    }
}

impl Text for ReverseSk4Key {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.address.into(), self.port.get());
        format!("{address} -> {}", self.cookie)
    }
}

impl Text for ReverseSk6Key {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.address.into(), self.port.get());
        format!("{address} -> {}", self.cookie)
    }
}

impl Text for ReverseSk4 {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.address.into(), self.port.get());
        format!("{address} (revnat={})", self.rev_nat.get())
    }
}

impl Text for ReverseSk6 {
    fn text(&self) -> String {
        let address = SocketAddr::new(self.address.into(), self.port.get());
        format!("{address} (revnat={})", self.rev_nat.get())
    }
}

impl Text for Skip4Key {
    fn text(&self) -> String {
        skip_text(self.netns_cookie, self.address.into(), self.port.get())
    }
}

impl Text for Skip6Key {
    fn text(&self) -> String {
        skip_text(self.netns_cookie, self.address.into(), self.port.get())
    }
}

impl Text for IpcacheKey {
    fn text(&self) -> String {
        let bits = self.prefix_len.saturating_sub(IPCACHE_STATIC_BITS);
        format!("{}/{bits}", family_address(self.address, self.family != 1))
    }
}

impl Text for IpcacheValue {
    fn text(&self) -> String {
        const IPV6_TUNNEL: u8 = 4;
        let words = [
            (1, "skiptunnel"),
            (2, "hastunnel"),
            (IPV6_TUNNEL, "ipv6tunnel"),
            (8, "remotecluster"),
        ];
        let mut flags: Vec<&str> = words
            .into_iter()
            .filter(|(bit, _)| self.flags & bit != 0)
            .map(|(_, word)| word)
            .collect();
        if flags.is_empty() {
            flags.push("<none>");
        }
        format!(
            "identity={} encryptkey={} tunnelendpoint={} flags={}",
            self.identity,
            self.encrypt_key,
            family_address(self.tunnel_endpoint, self.flags & IPV6_TUNNEL != 0),
            flags.join(",")
        )
    }
}

/// The address in 16 bytes of which IPv4 uses the first 4.
fn family_address(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    if is_ipv6 {
        bytes.into()
    } else {
        [a, b, c, d].into()
    }
}

fn frontend_text(address: IpAddr, port: u16, proto: u8, scope: u8, slot: u16) -> String {
    let scope = if scope == Scope::Internal as u8 { "/i" } else { "" };
    format!(
        "{}/{}{scope} ({slot})",
        SocketAddr::new(address, port),
        protocol(proto)
    )
}

fn backend_text(address: SocketAddr, proto: u8, state: u8, zone: u8) -> String {
    let state = match state {
        0 => "",
        1 => " (terminating)",
        2 => " (quarantined)",
        _ => " (maintenance)",
    };
    format!("{}://{address}{}{state}", protocol(proto), zone_text(zone))
}

/// A backend without its port.
pub(super) fn host_text(address: IpAddr, proto: u8, zone: u8) -> String {
    format!("{}://{address}{}", protocol(proto), zone_text(zone))
}

fn zone_text(zone: u8) -> String {
    if zone == 0 {
        String::new()
    } else {
        format!("[{zone}]")
    }
}

fn client_text(flags: u8, cookie: [u8; 8], address: IpAddr, id: u16) -> String {
    if flags & AFFINITY_NETNS_COOKIE == 0 {
        format!("{address} ({id})")
    } else {
        format!("netns:{} ({id})", u64::from_ne_bytes(cookie))
    }
}

fn range_text((network, bits): (IpAddr, u8), id: u16) -> String {
    format!("{network}/{bits} ({id})")
}

fn skip_text(cookie: u64, address: IpAddr, port: u16) -> String {
    format!("COOKIE={cookie} IP={address} PORT={port}")
}

/// What a counter of the programs counts, and in which direction.
pub(super) fn metrics_text(key: &MetricsKey) -> String {
    let direction = match key.direction & 3 {
        1 => "INGRESS",
        2 => "EGRESS",
        3 => "SERVICE",
        _ => "UNKNOWN",
    };
    format!("{} {direction}", reason_text(key.reason))
}

fn reason_text(reason: u8) -> String {
    use skep_bpf_maps::event::reason::{
        LB_NO_BACKEND, LB_NO_BACKEND_SLOT, LB_REVERSE_DELETE, LB_REVERSE_STALE, LB_REVERSE_UPDATE,
    };
    let text = match reason {
        LB_NO_BACKEND_SLOT => "LB: no backend slot entry found",
        LB_NO_BACKEND => "LB: no backend entry found",
        LB_REVERSE_UPDATE => "LB: reverse entry update failed",
        LB_REVERSE_STALE => "LB: reverse entry stale",
        LB_REVERSE_DELETE => "LB: reverse entry deleted",
        other => return format!("reason {other}"),
    };
    text.to_owned()
}

/// What a token bucket is for.
pub(super) fn usage_text(usage: u32) -> String {
    match usage {
        1 => "icmpv6".to_owned(),
        2 => "events".to_owned(),
        3 => "socket-events".to_owned(),
        other => format!("usage {other}"),
    }
}

/// A Maglev table: ids of backends.
pub(super) fn table_text(table: &[u32]) -> String {
    let ids: Vec<String> = table.iter().map(u32::to_string).collect();
    format!("[{}]", ids.join(" "))
}

/// Name of an IP protocol number.
pub(super) fn protocol(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        0 => "ANY",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::lb::ServiceFlags;

    use super::*;

    #[test]
    fn frontends_carry_scope_and_slot() {
        let key = Service4Key::new([10, 96, 0, 10].into(), 53, 17, Scope::Internal).at(2);
        assert_eq!(key.text(), "10.96.0.10:53/UDP/i (2)");
        assert_eq!(
            Service6Key::wildcard(Ipv6Addr::LOCALHOST).text(),
            "[::1]:0/ANY (0)"
        );
    }

    #[test]
    fn backends_are_told_by_address_and_zone() {
        assert_eq!(host_text([10, 244, 1, 7].into(), 6, 0), "TCP://10.244.1.7");
        assert_eq!(host_text([10, 244, 1, 7].into(), 17, 3), "UDP://10.244.1.7[3]");
    }

    #[test]
    fn frontends_show_their_raw_entry() {
        let flags = ServiceFlags::from_bits(0x2142);
        let value = ServiceValue::master(2, 1, 7, flags)
            .with_affinity_timeout(600)
            .unwrap();
        assert_eq!(value.text(), "600 2[1] (7) [0x42 0x21]");
    }
}
