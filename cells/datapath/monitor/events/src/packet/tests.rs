// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const TCP: &str = "fac6a269d4714227ded30bad080045000028123440003f0614190a0100a50a0100ddd6d90050000003e8000000005002ffffbf4d0000";
const TCP6: &str = "fac6a269d4714227ded30bad86dd600123450014063ffd0000100001000000000000000063cbfd0000100001000000000000000003259c4\
                    10050000003e8000000005002ffffae550000";
const UDP: &str = "fac6a269d4714227ded30bad08004500002c123440003f11140a0a0100a50a0100dda41100350018823078787878787878787878787878787878";

fn bytes(text: &str) -> Vec<u8> {
    hex::decode(text).unwrap()
}

fn line(bytes: &[u8]) -> String {
    Packet::dissect(bytes, Start::Ethernet, None).connection()
}

/// An Ethernet frame with an IPv4 packet of this protocol.
fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = bytes(TCP)[..34].to_vec();
    packet[17] = 20 + payload.len() as u8;
    packet[23] = protocol;
    packet.extend_from_slice(payload);
    packet
}

#[test]
fn connections_are_one_line() {
    assert_eq!(line(&bytes(TCP)), "10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN");
    assert_eq!(
        line(&bytes(TCP6)),
        "[fd00:10:1::63cb]:40001 -> [fd00:10:1::325]:80 tcp SYN"
    );
    assert_eq!(line(&bytes(UDP)), "10.1.0.165:42001 -> 10.1.0.221:53 udp");
    let cases: [(u8, &[u8], &str); 6] = [
        (1, &[3, 3, 0, 0, 0, 0, 0, 0], "icmp DestinationUnreachable(Port)"),
        (132, &[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0], "sctp"),
        (
            112,
            &[0x21, 7, 100, 0, 0, 1, 0, 0],
            "vrrp VRRPv2 Advertisement 7 100",
        ),
        (
            2,
            &[0x16, 0, 0, 0, 224, 0, 0, 5],
            "igmp IGMPv2 Membership Report 224.0.0.5",
        ),
        (50, &[1, 2, 3], ""),
        (6, &[], ""),
    ];
    for (protocol, payload, what) in cases {
        let ends = match protocol {
            132 => "10.1.0.165:1 -> 10.1.0.221:2",
            _ => "10.1.0.165 -> 10.1.0.221",
        };
        let expected = format!("{ends} {what}");
        assert_eq!(line(&ipv4(protocol, payload)), expected.trim_end());
    }
}

#[test]
fn flags_of_tcp_are_in_order() {
    let mut packet = bytes(TCP);
    packet[47] = 0x17;
    assert!(line(&packet).ends_with(" tcp SYN, ACK, RST, FIN"));
    packet[47] = 0x08;
    assert!(line(&packet).ends_with(":80 tcp "));
}

#[test]
fn frames_without_ip_have_their_mac_addresses() {
    let mut packet = bytes(TCP);
    for (kind, name) in [
        (0x0806_u16, "ARP"),
        (0x8100, "Dot1Q"),
        (46, "LLC"),
        (0xffff, "UnknownEthernetType"),
    ] {
        packet[12..14].copy_from_slice(&kind.to_be_bytes());
        assert_eq!(
            line(&packet),
            format!("42:27:de:d3:0b:ad -> fa:c6:a2:69:d4:71 {name}")
        );
    }
}

#[test]
fn fragments_have_no_ports() {
    for flags in [[0x20, 0], [0, 5]] {
        let mut packet = bytes(UDP);
        packet[20..22].copy_from_slice(&flags);
        assert_eq!(line(&packet), "10.1.0.165 -> 10.1.0.221");
    }
}

#[test]
fn what_is_empty_or_broken_says_so() {
    assert_eq!(line(&[]), "[unknown]");
    assert_eq!(line(&[1, 2, 3]), "[error]");
    assert_eq!(line(&bytes(TCP)[..40]), "[error]");
    let mut packet = bytes(TCP);
    packet[14] = 0x65;
    assert_eq!(line(&packet), "[error]");
    packet[14] = 0x44;
    assert_eq!(line(&packet), "[error]");
}

#[test]
fn packets_without_ethernet_begin_with_ip() {
    let packet = bytes(TCP);
    let found = Packet::dissect(&packet[14..], Start::of(true, false), None);
    assert_eq!(found.connection(), "10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN");
    let packet = bytes(TCP6);
    let found = Packet::dissect(&packet[14..], Start::of(true, true), None);
    assert!(found.connection().starts_with("[fd00:10:1::63cb]:40001 -> "));
}

#[test]
fn hop_by_hop_options_belong_to_ipv6() {
    let mut packet = bytes(TCP6);
    packet[20] = 0;
    packet[19] += 8;
    packet.splice(54..54, [6, 0, 5, 2, 0, 0, 0, 0]);

    let found = Packet::dissect(&packet, Start::Ethernet, None);

    assert_eq!(
        found.connection(),
        "[fd00:10:1::63cb]:40001 -> [fd00:10:1::325]:80 tcp SYN"
    );
    assert!(!found.is_truncated);
    assert!(found.layers[1].text().contains("NextHeader=IPv6HopByHop"));
}

#[test]
fn encapsulated_packets_show_both() {
    let inner = bytes(TCP);
    let tunnel = |header: &[u8]| {
        let mut payload = vec![0xc0, 0, 0x12, 0xb5];
        payload.extend((8 + header.len() as u16 + inner.len() as u16).to_be_bytes());
        payload.extend([0, 0]);
        payload.extend_from_slice(header);
        payload.extend_from_slice(&inner);
        ipv4(17, &payload)
    };
    let vxlan = tunnel(&[8, 0, 0, 0, 0, 0, 2, 0]);
    let geneve = tunnel(&[1, 0, 0x65, 0x58, 0, 0, 2, 0, 1, 2, 3, 4]);

    let ends = "[tunnel 10.1.0.165:49152 -> 10.1.0.221:4789";
    let tcp = "10.1.0.165:55001 -> 10.1.0.221:80 tcp SYN";
    let packet = Packet::dissect(&vxlan, Start::Ethernet, Some(Encapsulation::Vxlan));
    assert_eq!(packet.connection(), format!("{tcp} {ends} vxlan]"));
    assert!(
        packet
            .all_layers()
            .any(|layer| layer.text().contains("ValidIDFlag=true VNI=2"))
    );
    let packet = Packet::dissect(&geneve, Start::Ethernet, Some(Encapsulation::Geneve));
    assert_eq!(packet.connection(), format!("{tcp} {ends} geneve]"));
    // Without the flag it is a datagram like any other.
    assert!(line(&vxlan).ends_with(":4789 udp"));
    let cut = Packet::dissect(&vxlan[..60], Start::Ethernet, Some(Encapsulation::Vxlan));
    assert_eq!(cut.connection(), format!("[error] {ends} vxlan]"));
    assert!(cut.is_truncated);
}

#[test]
fn layers_have_the_form_of_gopacket() {
    let packet = bytes(TCP);
    let found = Packet::dissect(&packet, Start::Ethernet, None);

    let texts: Vec<String> = found.all_layers().map(Layer::text).collect();

    assert_eq!(
        texts,
        [
            "Ethernet\t{Contents=[..14..] Payload=[..40..] SrcMAC=42:27:de:d3:0b:ad DstMAC=fa:c6:a2:69:d4:71 EthernetType=IPv4 \
             Length=0}",
            "IPv4\t{Contents=[..20..] Payload=[..20..] Version=4 IHL=5 TOS=0 Length=40 Id=4660 Flags=DF FragOffset=0 TTL=63 \
             Protocol=TCP Checksum=5145 SrcIP=10.1.0.165 DstIP=10.1.0.221 Options=[] Padding=[]}",
            "TCP\t{Contents=[..20..] Payload=[] SrcPort=55001 DstPort=80(http) Seq=1000 Ack=0 DataOffset=5 FIN=false SYN=true \
             RST=false PSH=false ACK=false URG=false ECE=false CWR=false NS=false Window=65535 Checksum=48973 Urgent=0 \
             Options=[] Padding=[] Multipath=false}",
        ]
    );
}

#[test]
fn options_of_tcp_are_shown() {
    let mut packet = bytes(TCP);
    packet[17] += 8;
    packet[46] = 0x70;
    packet.extend([2, 4, 5, 0xb4, 3, 3, 7, 1]);

    let found = Packet::dissect(&packet, Start::Ethernet, None);

    let text = found.layers[2].text();
    let options = "Options=[TCPOption(MSS:1460 0x05b4), TCPOption(WindowScale: 0x07), TCPOption(NOP:)]";
    assert!(text.contains(options), "{text}");
}

proptest! {
    #[test]
    fn garbage_is_dissected_without_panics(
        packet in prop::collection::vec(any::<u8>(), 0..200),
        kept in 0_usize..54,
        start in prop::sample::select(vec![Start::Ethernet, Start::Ipv4, Start::Ipv6]),
        tunnel in prop::sample::select(vec![None, Some(Encapsulation::Vxlan), Some(Encapsulation::Geneve)]),
        base in prop::sample::select(vec![TCP, TCP6, UDP]),
    ) {
        // Beginning like a packet, so that later layers are reached.
        let mut packet = packet;
        let base = bytes(base);
        let kept = kept.min(packet.len());
        packet[..kept].copy_from_slice(&base[..kept]);
        let found = Packet::dissect(&packet, start, tunnel);
        prop_assert!(!found.connection().is_empty());
        for layer in found.all_layers() {
            prop_assert!(!layer.text().is_empty());
        }
    }
}
