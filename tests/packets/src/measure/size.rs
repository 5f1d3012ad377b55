// SPDX-License-Identifier: Apache-2.0

//! How large the programs are, and how long the verifier works at them.

use std::path::Path;

use skep_bpf_programs::{
    OVERLAY_PROGRAMS, PACKET_PROGRAMS, XDP_PROGRAM,
    testing::run::{ProgramSize, program_size},
};
use skep_bpf_sys::testing::Node;

use super::{Mode, with_mode};
use crate::{
    Error,
    options::options,
    vectors::Facts,
    world::{World, small},
};

/// A program, loaded with some options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizedProgram {
    pub name: &'static str,
    /// `with DSR` or `with tunnel`; empty: neither.
    pub options: &'static str,
    pub size: ProgramSize,
}

/// Loads all programs with the facts of this folder, with masquerading and XDP, and returns their sizes.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn sizes(folder: &Path) -> Result<Vec<SizedProgram>, Error> {
    let names = PACKET_PROGRAMS
        .into_iter()
        .chain(OVERLAY_PROGRAMS)
        .chain([XDP_PROGRAM]);
    let mut all = Vec::new();
    for mode in Mode::ALL {
        let (_, files) = super::FILES[1];
        let facts = Facts::read_all(files.iter().map(|file| folder.join(file)))?;
        let options = with_mode(options(&facts, "")?, &facts, mode)?;
        let of_mode = Node::run("sizes", |node| {
            let world = World::with_options(node, facts, "", &options, &small())?;
            let loaded = names
                .clone()
                .filter_map(|name| Some((name, world.program(name)?)));
            let sized = loaded.map(|(name, program)| {
                Ok(SizedProgram {
                    name,
                    options: mode.text(),
                    size: program_size(program)?,
                })
            });
            sized.collect::<Result<Vec<_>, Error>>()
        })?;
        all.extend(of_mode);
    }
    Ok(all)
}

impl Mode {
    const fn text(self) -> &'static str {
        match self {
            Self::Routed => "",
            Self::Direct => "with DSR",
            Self::Tunnelled => "with tunnel",
        }
    }
}
