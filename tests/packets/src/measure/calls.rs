// SPDX-License-Identifier: Apache-2.0

//! What a packet makes the programs call on each of its ways, counted by programs that are compiled with counters.

use std::path::Path;

use skep_bpf_programs::Calls;

use super::{Load, Meter, Runner, visit};
use crate::Error;

/// What packets of one way call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayCalls {
    pub name: &'static str,
    /// IPv6.
    pub is_ipv6: bool,
    /// The first packet of a flow between addresses that had one before.
    pub first: Calls,
    pub established: Option<Calls>,
    pub reply: Option<Calls>,
}

/// Counts what packets of all ways call, with the facts and scenarios of this folder, and room for so many flows in the
/// flow table.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn count(folder: &Path, flow_table: u32) -> Result<Vec<WayCalls>, Error> {
    let load = Load {
        services: 0,
        flows: 0,
        flow_table,
    };
    visit(folder, 1, load, None, true, |meter| meter.way_calls())
}

/// As [`count`], of packets between pods, with the policies of [`measure_between_pods`](super::measure_between_pods).
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn count_between_pods(folder: &Path, policy: Option<u32>) -> Result<Vec<WayCalls>, Error> {
    let flow_table = 0;
    let load = Load {
        services: 0,
        flows: 0,
        flow_table,
    };
    visit(folder, 1, load, Some(policy), true, |meter| meter.way_calls())
}

impl Meter<'_> {
    fn way_calls(&self) -> Result<WayCalls, Error> {
        self.open()?;
        let first = self.runner(self.way.opening[0])?;
        let opening = self.opening(&first, self.ports.start);
        Ok(WayCalls {
            name: self.way.name,
            is_ipv6: self.is_ipv6,
            first: self.calls_of(&first, &opening)?,
            established: self.calls_of_step(self.way.established)?,
            reply: self.calls_of_step(self.way.reply)?,
        })
    }

    fn calls_of_step(&self, index: Option<usize>) -> Result<Option<Calls>, Error> {
        let Some(index) = index else { return Ok(None) };
        let runner = self.runner(index)?;
        // The first acknowledgement changes the flow.
        let frame = self.acknowledgement(&runner);
        runner.call(&frame)?;
        self.calls_of(&runner, &frame).map(Some)
    }

    fn calls_of(&self, runner: &Runner<'_>, frame: &[u8]) -> Result<Calls, Error> {
        self.world.take_calls()?;
        runner.call(frame)?;
        self.world.take_calls()
    }
}
