// SPDX-License-Identifier: Apache-2.0

//! Names of ICMP messages, as gopacket has them.

const NONE: &[&str] = &[];

/// Type and code of a message over IPv4.
pub(super) fn v4(kind: u8, code: u8) -> String {
    let (name, codes) = match kind {
        0 => ("EchoReply", NONE),
        3 => ("DestinationUnreachable", UNREACHABLE4),
        4 => ("SourceQuench", NONE),
        5 => ("Redirect", &["Net", "Host", "TOS+Net", "TOS+Host"][..]),
        8 => ("EchoRequest", NONE),
        9 => ("RouterAdvertisement", NONE),
        10 => ("RouterSolicitation", NONE),
        11 => (
            "TimeExceeded",
            &["TTLExceeded", "FragmentReassemblyTimeExceeded"][..],
        ),
        12 => (
            "ParameterProblem",
            &["PointerIndicatesError", "MissingOption", "BadLength"][..],
        ),
        13 => ("TimestampRequest", NONE),
        14 => ("TimestampReply", NONE),
        15 => ("InfoRequest", NONE),
        16 => ("InfoReply", NONE),
        17 => ("AddressMaskRequest", NONE),
        18 => ("AddressMaskReply", NONE),
        _ => return format!("{kind}({code})"),
    };
    with_code(name, codes, code)
}

/// Type and code of a message over IPv6.
pub(super) fn v6(kind: u8, code: u8) -> String {
    let (name, codes) = match kind {
        1 => ("DestinationUnreachable", UNREACHABLE6),
        2 => ("PacketTooBig", NONE),
        3 => (
            "TimeExceeded",
            &["HopLimitExceeded", "FragmentReassemblyTimeExceeded"][..],
        ),
        4 => (
            "ParameterProblem",
            &[
                "ErroneousHeaderField",
                "UnrecognizedNextHeader",
                "UnrecognizedIPv6Option",
            ][..],
        ),
        128 => ("EchoRequest", NONE),
        129 => ("EchoReply", NONE),
        133 => ("RouterSolicitation", NONE),
        134 => ("RouterAdvertisement", NONE),
        135 => ("NeighborSolicitation", NONE),
        136 => ("NeighborAdvertisement", NONE),
        137 => ("Redirect", NONE),
        _ => return format!("{kind}({code})"),
    };
    with_code(name, codes, code)
}

const UNREACHABLE4: &[&str] = &[
    "Net",
    "Host",
    "Protocol",
    "Port",
    "FragmentationNeeded",
    "SourceRoutingFailed",
    "NetUnknown",
    "HostUnknown",
    "SourceIsolated",
    "NetAdminProhibited",
    "HostAdminProhibited",
    "NetTOS",
    "HostTOS",
    "CommAdminProhibited",
    "HostPrecedence",
    "PrecedenceCutoff",
];

const UNREACHABLE6: &[&str] = &[
    "NoRouteToDst",
    "AdminProhibited",
    "BeyondScopeOfSrc",
    "AddressUnreachable",
    "PortUnreachable",
    "SrcAddressFailedPolicy",
    "RejectRouteToDst",
];

fn with_code(name: &str, codes: &[&str], code: u8) -> String {
    match codes.get(usize::from(code)) {
        Some(known) => format!("{name}({known})"),
        None if codes.is_empty() && code == 0 => name.to_owned(),
        None => format!("{name}(Code: {code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_codes_have_names() {
        assert_eq!(v4(8, 0), "EchoRequest");
        assert_eq!(v4(8, 3), "EchoRequest(Code: 3)");
        assert_eq!(v4(3, 4), "DestinationUnreachable(FragmentationNeeded)");
        assert_eq!(v4(3, 16), "DestinationUnreachable(Code: 16)");
        assert_eq!(v4(42, 1), "42(1)");
        assert_eq!(v6(135, 0), "NeighborSolicitation");
        assert_eq!(v6(1, 4), "DestinationUnreachable(PortUnreachable)");
        assert_eq!(v6(200, 0), "200(0)");
    }
}
