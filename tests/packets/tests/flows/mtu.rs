// SPDX-License-Identifier: Apache-2.0

//! Packets of services that exceed the MTU of the way that they have to go.

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};

use crate::{dsr::*, frame::*, packet::*};

/// As large as the interface lets packets be.
pub(crate) fn full(frame: Frame) -> Frame {
    let headers = if frame.source.is_ipv4() { 20 } else { 40 } + if frame.proto == TCP { 20 } else { 8 };
    frame.payload(MTU - headers)
}

pub(crate) fn larger(mut frame: Frame) -> Frame {
    frame.payload.push(0);
    frame
}

/// The XDP program leaves a packet that is too large to the tc program, which tells its sender.
fn assert_told(node: &PacketNode, frame: &Frame) -> Result<(), Error> {
    let ran = receive(node, XDP, frame)?;
    assert_eq!(ran.verdict, XDP_PASS);
    assert_eq!(read_back(&ran), *frame, "as it came");
    assert_eq!(ran.metadata, [0; 0]);

    let ran = receive(node, TC, frame)?;
    assert_eq!(ran.verdict, REDIRECT);
    assert_too_large(&ran.packet, &frame.bytes(), MTU);
    Ok(())
}

#[test]
fn clients_hear_that_packets_do_not_fit_on_the_way_to_the_backend() {
    let done = with_node(&facts(), |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let fits = full(request(family, proto));
            for program in [TC, XDP] {
                let ran = receive(node, program, &fits)?;
                assert!([REDIRECT, XDP_TX].contains(&ran.verdict), "{program}");
                assert_eq!(read_back(&ran).destination, backend(family, proto));
            }
            assert_told(node, &larger(fits))
        })
    });
    done.unwrap();
}

#[test]
fn backends_hear_that_answers_do_not_fit_on_the_way_to_the_client() {
    let done = with_node(&facts(), |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let asked = request(family, proto);
            let forwarded = read_back(&receive(node, TC, &asked)?);
            let fits = full(forwarded.answer());
            for program in [TC, XDP] {
                let ran = receive(node, program, &fits)?;
                assert!([REDIRECT, XDP_TX].contains(&ran.verdict), "{program}");
                assert_eq!(read_back(&ran).source, asked.destination);
            }
            assert_told(node, &larger(fits))
        })
    });
    done.unwrap();
}

#[test]
fn the_kernel_gets_large_packets_of_pods() {
    let done = with_node(&facts(), |node| {
        each(|family, proto| {
            node.forget_flows()?;
            let to = (family.remote_pod(), 80).into();
            let fits = full(Frame::new(proto, (family.local_pod(), 40_000).into(), to));
            let ran = node.run("cil_from_container", &fits.bytes(), &at(P2_IFINDEX))?;
            assert_eq!(ran.verdict, REDIRECT);
            let frame = larger(fits);

            let ran = node.run("cil_from_container", &frame.bytes(), &at(P2_IFINDEX))?;

            assert_eq!(ran.verdict, 0);
            assert_eq!(read_back(&ran), frame, "no hop further");
            assert_eq!(drops(node)?, [0; 0]);
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn direct_return_tells_of_packets_that_do_not_grow_as_well() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            let frame = larger(full(request(family, TCP).flags(ACK)));
            let ran = receive(node, TC, &frame)?;
            assert_eq!(ran.verdict, REDIRECT, "{family:?}: {:?}", drops(node)?);
            assert_too_large(&ran.packet, &frame.bytes(), MTU);
        }
        Ok(())
    });
}

/// Those of BIG TCP are too large for the field.
#[test]
fn packets_without_a_length_in_their_header_are_not_broken() {
    let done = with_node(&facts(), |node| {
        for family in [V4, V6] {
            let mut frame = request(family, TCP).bytes();
            let length = if family == V4 { 16..18 } else { 18..20 };
            frame[length].fill(0);
            for (program, sent_on) in [(TC, REDIRECT), (XDP, XDP_TX)] {
                let ran = node.run(program, &frame, &at(ETH0_IFINDEX))?;
                assert_eq!(ran.verdict, sent_on, "{program} {:?}", drops(node)?);
            }
        }
        Ok(())
    });
    done.unwrap();
}
