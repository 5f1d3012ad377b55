// SPDX-License-Identifier: Apache-2.0

//! Queueing disciplines of interfaces.

use netlink_packet_core::{DefaultNla, Nla as _, NlasIterator};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
};

use crate::{CREATE, NetError, Netlink, REPLACE};

/// `TCA_FQ_BUCKETS_LOG`
const FQ_BUCKETS: u16 = 8;
/// `TCA_FQ_HORIZON`
const FQ_HORIZON: u16 = 15;

/// A queueing discipline of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Qdisc {
    /// Index of the interface.
    pub device: u32,
    /// Such as `fq`.
    pub kind: String,
    /// Major and minor number; 0: the kernel's choice.
    pub handle: u32,
    /// Handle of its class, or [`ROOT`](Self::ROOT).
    pub parent: u32,
    pub fq: Option<FqOptions>,
}

/// Options of `fq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FqOptions {
    /// Packets that are to leave later are dropped, in microseconds.
    pub horizon: u32,
    /// Binary logarithm of the number of buckets.
    pub buckets: u32,
}

impl Qdisc {
    pub const ROOT: u32 = u32::MAX;
    /// Parent of `clsact` and `ingress`, which hold no packets.
    pub const CLSACT: u32 = 0xffff_fff1;

    pub fn is_root(&self) -> bool {
        self.parent == Self::ROOT
    }

    fn message(&self) -> TcMessage {
        let header = TcHeader {
            index: self.device.cast_signed(),
            handle: TcHandle::from(self.handle),
            parent: TcHandle::from(self.parent),
            ..TcHeader::default()
        };
        let mut attributes = vec![TcAttribute::Kind(self.kind.clone())];
        if let Some(FqOptions { horizon, buckets }) = self.fq {
            let option =
                |kind, value: u32| TcOption::Other(DefaultNla::new(kind, value.to_ne_bytes().to_vec()));
            let options = vec![option(FQ_BUCKETS, buckets), option(FQ_HORIZON, horizon)];
            attributes.push(TcAttribute::Options(options));
        }
        TcMessage::from_parts(header, attributes)
    }

    fn read(message: &TcMessage) -> Self {
        let header = &message.header;
        let mut qdisc = Self {
            device: header.index.cast_unsigned(),
            handle: header.handle.into(),
            parent: header.parent.into(),
            ..Self::default()
        };
        for attribute in &message.attributes {
            match attribute {
                TcAttribute::Kind(kind) => qdisc.kind.clone_from(kind),
                TcAttribute::Options(options) => qdisc.fq = options.first().map(fq_options),
                _ => {}
            }
        }
        if qdisc.kind != "fq" {
            qdisc.fq = None;
        }
        qdisc
    }
}

/// The library leaves the options of `fq` unparsed.
fn fq_options(options: &TcOption) -> FqOptions {
    let mut bytes = vec![0; options.value_len()];
    options.emit_value(&mut bytes);
    let mut found = FqOptions::default();
    for attribute in NlasIterator::new(&bytes).flatten() {
        let Ok(value) = <[u8; 4]>::try_from(attribute.value()) else {
            continue;
        };
        match attribute.kind() {
            FQ_BUCKETS => found.buckets = u32::from_ne_bytes(value),
            FQ_HORIZON => found.horizon = u32::from_ne_bytes(value),
            _ => {}
        }
    }
    found
}

impl Netlink {
    /// Lists the queueing disciplines of an interface.
    pub fn qdiscs(&self, device: u32) -> Result<Vec<Qdisc>, NetError> {
        let request = TcMessage::with_index(device.cast_signed());
        let what = format_args!("list queueing disciplines of interface {device}");
        let listed = self.list(RouteNetlinkMessage::GetQueueDiscipline(request), what)?;
        let read = listed.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewQueueDiscipline(message) => Some(Qdisc::read(message)),
            _ => None,
        });
        // The kernel lists those of all interfaces.
        Ok(read.filter(|qdisc| qdisc.device == device).collect())
    }

    /// Sets the queueing discipline at its parent.
    pub fn replace_qdisc(&self, qdisc: &Qdisc) -> Result<(), NetError> {
        let what = format_args!(
            "set queueing discipline {} of interface {}",
            qdisc.kind, qdisc.device
        );
        let message = RouteNetlinkMessage::NewQueueDiscipline(qdisc.message());
        self.change(message, CREATE | REPLACE, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkSpec, netns::Namespace};

    #[test]
    fn disciplines_are_replaced_and_listed() {
        let test = || {
            let net = Netlink::open().unwrap();
            net.add_link(LinkSpec::veth("eth0", LinkSpec::new().name("peer")))
                .unwrap();
            let device = net.link("eth0").unwrap().index;
            let root = |kind: &str| Qdisc {
                device,
                kind: kind.to_owned(),
                parent: Qdisc::ROOT,
                ..Qdisc::default()
            };
            net.replace_qdisc(&root("pfifo")).unwrap();

            let found = net.qdiscs(device).unwrap();

            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].kind == "pfifo" && found[0].is_root() && found[0].handle != 0);
            assert_eq!(found[0].fq, None);
            net.replace_qdisc(&root("noqueue")).unwrap();
            assert!(
                net.qdiscs(device)
                    .unwrap()
                    .iter()
                    .all(|found| found.kind == "noqueue")
            );
            let error = net.replace_qdisc(&root("none such")).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");

            let options = FqOptions {
                horizon: 2_000_000,
                buckets: 15,
            };
            let fq = Qdisc {
                fq: Some(options),
                ..root("fq")
            };
            // Not every kernel has it.
            if net.replace_qdisc(&fq).is_ok() {
                assert_eq!(net.qdiscs(device).unwrap()[0].fq, Some(options));
            }
        };
        Namespace::new().unwrap().inside(test).unwrap();
    }

    #[test]
    fn options_of_fq_are_read() {
        let mut bytes = Vec::new();
        for (kind, value) in [(FQ_BUCKETS, 15_u32), (FQ_HORIZON, 2_000_000)] {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
        }
        let found = fq_options(&TcOption::Other(DefaultNla::new(2, bytes)));
        assert_eq!((found.horizon, found.buckets), (2_000_000, 15));
    }
}
