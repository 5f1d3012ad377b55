// SPDX-License-Identifier: Apache-2.0

//! Where the programs differ from what was recorded because what was recorded is a weakness. `docs/datapath.md` lists
//! them for users. A difference explains a step only if what was recorded is what it is about, too: other faults keep
//! being failures.

mod frames;

use frames::{IcmpError, has_broken_headers, icmp_fragment, is_echo, is_error, is_icmp6};
use skep_bpf_programs::XDP_PROGRAM;

use crate::{compare::Done, ports::Ports, vectors::Step};

pub(crate) struct Difference {
    /// Its name, as in the docs.
    pub(crate) name: &'static str,
    /// Whether it is what made a step differ.
    applies: fn(&Both<'_>) -> bool,
}

const ALL: [Difference; 10] = [
    Difference {
        name: "expired-entries",
        applies: expired_entries,
    },
    Difference {
        name: "broken-headers",
        applies: broken_headers,
    },
    Difference {
        name: "hop-limit-of-errors",
        applies: hop_limit_of_errors,
    },
    Difference {
        name: "nodeport-then-direct",
        applies: nodeport_then_direct,
    },
    Difference {
        name: "errors-about-translated-flows",
        applies: errors_about_translated_flows,
    },
    Difference {
        name: "packet-too-big",
        applies: packet_too_big,
    },
    Difference {
        name: "errors-of-routers",
        applies: errors_of_routers,
    },
    Difference {
        name: "unresolved-neighbour",
        applies: unresolved_neighbour,
    },
    Difference {
        name: "solicitations-from-afar",
        applies: solicitations_from_afar,
    },
    Difference {
        name: "fragments-of-echo",
        applies: fragments_of_echo,
    },
];

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const OK: u32 = 0;
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;
const NODE_PORT: u8 = 1 << 5;
const RELATED: u8 = 2;
const POLICY: u8 = 133;
const INVALID: u8 = 134;
const HEADER: u8 = 135;
const UNKNOWN_TARGET: u8 = 150;
const NO_ROUTE: u8 = 169;
const FRAGMENT_NOT_FOUND: u8 = 175;
const POLICY_DENY: u8 = 181;
const HOP_LIMIT: u8 = 196;
/// XDP's messages to tc: no service; no service, and source translation undone.
const NO_SERVICE: [u8; 4] = [1, 0, 0, 0];
const SNAT_UNDONE: [u8; 4] = [5, 0, 0, 0];

/// A step, as it was recorded and as it was done.
struct Both<'a> {
    step: &'a Step,
    input: &'a [u8],
    done: &'a Done,
    ports: &'a Ports,
    /// The packet that was recorded, with ports as they are here.
    theirs: Vec<u8>,
}

/// The difference that explains a step, if any does.
pub(crate) fn of(step: &Step, input: &[u8], done: &Done, ports: &Ports) -> Option<&'static Difference> {
    let theirs = match &step.packet_out {
        Some(packet) => ports.packet(&packet.0),
        None => input.to_vec(),
    };
    let both = Both {
        step,
        input,
        done,
        ports,
        theirs,
    };
    ALL.iter().find(|difference| (difference.applies)(&both))
}

pub(crate) fn is_xdp(step: &Step) -> bool {
    step.program.as_deref() == Some(XDP_PROGRAM)
}

impl Both<'_> {
    /// What happened to the packet: the reason if it was dropped, 0 if no event says so.
    fn reason<'a>(&self, verdict: Option<u32>, mut events: impl Iterator<Item = &'a [u8]>) -> Option<u8> {
        let drop = if is_xdp(self.step) { XDP_DROP } else { SHOT };
        let reason = events.find_map(|event| match event {
            [1, reason, ..] => Some(*reason),
            _ => None,
        });
        (verdict == Some(drop)).then_some(reason.unwrap_or_default())
    }

    fn their_drop(&self) -> Option<u8> {
        let events = self.step.events.iter().rev();
        self.reason(self.step.ret, events.map(|event| &*event.hex.0))
    }

    fn our_drop(&self) -> Option<u8> {
        let events = self.done.events.iter().rev();
        self.reason(Some(self.done.verdict), events.map(|event| &**event))
    }

    /// The packet did not change, here and there.
    fn is_unchanged(&self) -> (bool, bool) {
        (self.done.packet == self.input, self.theirs == self.input)
    }

    fn is_same_verdict(&self) -> bool {
        self.step.ret == Some(self.done.verdict)
    }

    /// An entry was changed like this when it was recorded.
    fn did(&self, op: &str, map: &str, key: &[u8]) -> bool {
        self.step
            .map_changes
            .iter()
            .any(|change| change.map == map && change.op == op && self.ports.key(map, &change.key.0) == key)
    }
}

/// Theirs used an entry that had expired.
fn expired_entries(both: &Both<'_>) -> bool {
    both.done.before.iter().any(|(map, entries)| {
        map.starts_with("cilium_ct")
            && entries.iter().any(|(key, entry)| {
                lifetime(entry).is_some_and(|end| u64::from(end) < both.done.now)
                    // Entries of errors are also overwritten by new flows.
                    && key.last().is_some_and(|flags| flags & RELATED == 0)
                    && both.did("update", map, key)
            })
    })
}

fn lifetime(entry: &[u8]) -> Option<u32> {
    let bytes = entry.get(32..36)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Theirs went on with the packet.
fn broken_headers(both: &Both<'_>) -> bool {
    let (is_kept, is_unchanged) = both.is_unchanged();
    let went_on = !matches!(both.their_drop(), Some(INVALID | HEADER)) || !is_unchanged;
    matches!(both.our_drop(), Some(INVALID | HEADER)) && is_kept && has_broken_headers(both.input) && went_on
}

/// Theirs sent the same error with the hop limit and the flow label of the packet.
fn hop_limit_of_errors(both: &Both<'_>) -> bool {
    let (input, ours) = (both.input, &both.done.packet);
    if is_icmp6(input, 3) || !is_icmp6(&both.theirs, 3) || !is_icmp6(ours, 3) {
        return false;
    }
    let (flow, hop_limit) = (14..18, 21);
    let mut theirs = both.theirs.clone();
    let is_copied =
        theirs.get(flow.clone()) == input.get(flow.clone()) && theirs.get(hop_limit) == input.get(hop_limit);
    theirs[flow.clone()].copy_from_slice(&ours[flow]);
    theirs[hop_limit] = ours[hop_limit];
    let (Some(theirs), Some(ours)) = (IcmpError::read(&theirs), IcmpError::read(ours)) else {
        return false;
    };
    is_copied
        && both.is_same_verdict()
        && theirs.is_same(&ours)
        && theirs.hop == ours.hop
        && (theirs.source, theirs.destination) == (ours.source, ours.destination)
        && theirs.quoted_source == ours.quoted_source
}

/// The entry of the NodePort went with the first packet of the direct connection; theirs is still there.
fn nodeport_then_direct(both: &Both<'_>) -> bool {
    let is_only_here = |map: &str, key: &[u8]| {
        let is_kept = both
            .done
            .after
            .get(map)
            .is_some_and(|after| after.contains_key(key));
        !is_kept && !both.did("delete", map, key)
    };
    both.is_same_verdict()
        && both.theirs == both.done.packet
        && both.done.before.iter().any(|(map, entries)| {
            map.starts_with("cilium_ct")
                && entries.iter().any(|(key, entry)| {
                    entry.get(36).is_some_and(|flags| flags & NODE_PORT != 0) && is_only_here(map, key)
                })
        })
}

/// Theirs left the error as it came, or quotes the backend, and let it pass.
fn errors_about_translated_flows(both: &Both<'_>) -> bool {
    let read = (
        IcmpError::read(both.input),
        IcmpError::read(&both.theirs),
        IcmpError::read(&both.done.packet),
    );
    let (Some(came), Some(theirs), Some(ours)) = read else {
        return false;
    };
    if both.their_drop().is_some() || both.our_drop().is_some() || !ours.is_same(&theirs) {
        return false;
    }
    if is_xdp(both.step) {
        // The tc program does here what XDP does there.
        let is_undone = theirs.source == came.source
            && theirs.destination == theirs.quoted_source.0
            && theirs.quoted_destination == came.quoted_destination;
        return both.step.ret == Some(XDP_PASS)
            && both
                .step
                .metadata_out
                .as_ref()
                .is_some_and(|said| said.0 == SNAT_UNDONE)
            && is_undone
            && theirs != came
            && both.done.verdict == XDP_PASS
            && ours == came
            && both.done.metadata == NO_SERVICE;
    }
    theirs.quoted_destination == came.quoted_destination
        && (theirs == came || theirs.destination == theirs.quoted_source.0)
        && ours.destination == ours.quoted_source.0
        // What differs is not only where the frame goes.
        && (&ours.quoted_source, &ours.quoted_destination) != (&theirs.quoted_source, &theirs.quoted_destination)
        && (both.is_same_verdict() || both.step.ret == Some(OK))
        && (!both.is_same_verdict() || ours.hop == theirs.hop || theirs == came)
}

/// Theirs asked a policy, whether or not that let it pass.
fn packet_too_big(both: &Both<'_>) -> bool {
    let asked = both
        .step
        .map_changes
        .iter()
        .any(|change| change.map == "cilium_policystats");
    is_icmp6(both.input, 2)
        && both.our_drop().is_none()
        && match both.their_drop() {
            Some(reason) => matches!(reason, POLICY | POLICY_DENY),
            None => asked && both.is_same_verdict() && both.theirs == both.done.packet,
        }
}

fn errors_of_routers(both: &Both<'_>) -> bool {
    matches!(both.their_drop(), Some(POLICY | POLICY_DENY))
        && is_error(both.input)
        && both.our_drop().is_none()
}

fn unresolved_neighbour(both: &Both<'_>) -> bool {
    is_xdp(both.step)
        && both.their_drop() == Some(NO_ROUTE)
        && both.done.verdict == XDP_PASS
        && both.is_unchanged().0
}

/// Theirs answered, or did what it does with targets that it does not answer for.
fn solicitations_from_afar(both: &Both<'_>) -> bool {
    let (is_kept, is_unchanged) = both.is_unchanged();
    let is_recorded = match both.step.ret {
        Some(REDIRECT) => is_icmp6(&both.theirs, 136),
        Some(OK) => is_unchanged,
        _ => both.their_drop() == Some(UNKNOWN_TARGET),
    };
    is_icmp6(both.input, 135)
        && both.input.get(21) != Some(&u8::MAX)
        && both.our_drop() == Some(INVALID)
        && is_kept
        && is_recorded
}

/// Theirs dropped the fragment before anything was stored.
fn fragments_of_echo(both: &Both<'_>) -> bool {
    let Some(first) = icmp_fragment(both.input) else {
        return false;
    };
    let went_on = match (both.our_drop(), first) {
        (Some(FRAGMENT_NOT_FOUND), None) | (Some(POLICY | POLICY_DENY | HOP_LIMIT), _) => true,
        (Some(_), _) => false,
        (None, None) => true,
        // Other messages go to the node only.
        (None, Some(kind)) => {
            is_echo(both.input, kind) || both.is_unchanged().0 && both.done.verdict != REDIRECT
        }
    };
    both.their_drop() == Some(INVALID) && both.step.map_changes.is_empty() && went_on
}

#[cfg(test)]
mod tests;
