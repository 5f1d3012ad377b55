// SPDX-License-Identifier: Apache-2.0

//! Names of protocols and ports, as gopacket has them.

/// What an Ethernet frame carries. Small numbers are the length of an LLC frame.
pub(super) const fn ether_type(number: u16) -> &'static str {
    match number {
        0..0x0600 => "LLC",
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x2000 => "CiscoDiscovery",
        0x6558 => "TransparentEthernetBridging",
        0x8100 => "Dot1Q",
        0x86dd => "IPv6",
        0x880b => "PPP",
        0x8847 => "MPLSUnicast",
        0x8848 => "MPLSMulticast",
        0x8863 => "PPPoEDiscovery",
        0x8864 => "PPPoESession",
        0x888e => "EAPOL",
        0x88a8 => "QinQ",
        0x88be => "ERSPAN",
        0x88cc => "LinkLayerDiscovery",
        0x9000 => "EthernetCTP",
        _ => "UnknownEthernetType",
    }
}

pub(super) const fn ip_protocol(number: u8) -> &'static str {
    match number {
        0 => "IPv6HopByHop",
        1 => "ICMPv4",
        2 => "IGMP",
        4 => "IPv4",
        6 => "TCP",
        17 => "UDP",
        27 => "RUDP",
        41 => "IPv6",
        43 => "IPv6Routing",
        44 => "IPv6Fragment",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        58 => "ICMPv6",
        59 => "NoNextHeader",
        60 => "IPv6Destination",
        89 => "OSPF",
        94 => "IPIP",
        97 => "EtherIP",
        112 => "VRRP",
        132 => "SCTP",
        136 => "UDPLite",
        137 => "MPLSInIP",
        _ => "UnknownIPProtocol",
    }
}

/// A port, with the name of the service that is most often behind it.
pub(super) fn port(number: u16) -> String {
    let name = match number {
        20 => "ftp-data",
        21 => "ftp",
        22 => "ssh",
        23 => "telnet",
        25 => "smtp",
        53 => "domain",
        67 => "bootps",
        68 => "bootpc",
        69 => "tftp",
        80 => "http",
        88 => "kerberos",
        110 => "pop3",
        111 => "sunrpc",
        123 => "ntp",
        143 => "imap",
        161 => "snmp",
        179 => "bgp",
        389 => "ldap",
        443 => "https",
        445 => "microsoft-ds",
        514 => "syslog",
        546 => "dhcpv6-client",
        547 => "dhcpv6-server",
        636 => "ldaps",
        853 => "domain-s",
        993 => "imaps",
        995 => "pop3s",
        2049 => "nfs",
        2379 => "etcd-client",
        2380 => "etcd-server",
        3306 => "mysql",
        3389 => "ms-wbt-server",
        4789 => "vxlan",
        5353 => "mdns",
        5432 => "postgresql",
        6081 => "geneve",
        8080 => "http-alt",
        _ => return number.to_string(),
    };
    format!("{number}({name})")
}
