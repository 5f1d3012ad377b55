// SPDX-License-Identifier: Apache-2.0

//! What older kernels refuse, as far as the instructions of the packet programs tell.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{collections::BTreeMap, fs};

const OBJECTS: [&str; 3] = ["tc_datapath", "tc_overlay", "xdp_datapath"];
/// `BPF_FUNC_task_pt_regs`: helpers are numbered in the order they came, and this is the last of 5.15.
const LAST_HELPER: i32 = 175;
/// `STT_FUNC`
const FUNCTION: u8 = 2;

/// `BPF_LD | BPF_IMM | BPF_DW`: takes two places.
const LOAD_WIDE: u8 = 0x18;
const JUMP: u8 = 5;
const JUMP32: u8 = 6;
const ALWAYS: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            immediate: i32::from_le_bytes(bytes[4..8].try_into().unwrap()),
        }
    }

    /// Where control goes from `here`, in the order in which the kernel looks, and whether it may be back into a loop.
    fn edges(self, here: usize) -> Vec<(usize, bool)> {
        let to = |offset: i64| usize::try_from(here as i64 + 1 + offset).unwrap();
        match (self.code & 7, self.code & 0xf0) {
            (JUMP | JUMP32, EXIT) => Vec::new(),
            (JUMP, ALWAYS) => vec![(to(self.offset.into()), true)],
            (JUMP32, ALWAYS) => vec![(to(self.immediate.into()), true)],
            (JUMP | JUMP32, CALL) => vec![(here + 1, false)],
            (JUMP | JUMP32, _) => vec![(here + 1, true), (to(self.offset.into()), true)],
            _ if self.code == LOAD_WIDE => vec![(here + 2, false)],
            _ => vec![(here + 1, false)],
        }
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    let mut wide = [0; 8];
    wide[..length].copy_from_slice(&bytes[at..at + length]);
    usize::try_from(u64::from_le_bytes(wide)).unwrap()
}

/// The functions of an object (ELF, 64 bit, little endian), those that programs call included.
fn functions(object: &str) -> BTreeMap<String, Vec<Instruction>> {
    let file = fs::read(format!("{}/{object}.bpf.o", env!("OUT_DIR"))).unwrap();
    let section = |index: usize| number(&file, 40, 8) + 64 * index;
    let start = |index: usize| number(&file, section(index) + 24, 8);
    let symbols = (0..number(&file, 60, 2))
        .find(|index| number(&file, section(*index) + 4, 4) == 2)
        .unwrap();
    let names = start(number(&file, section(symbols) + 40, 4));
    let mut found = BTreeMap::new();
    for index in 0..number(&file, section(symbols) + 32, 8) / 24 {
        let symbol = start(symbols) + 24 * index;
        if file[symbol + 4] & 15 != FUNCTION {
            continue;
        }
        let name = &file[names + number(&file, symbol, 4)..];
        let name = name.split(|byte| *byte == 0).next().unwrap();
        let code = start(number(&file, symbol + 6, 2)) + number(&file, symbol + 8, 8);
        let length = number(&file, symbol + 16, 8);
        let code = file[code..code + length].chunks_exact(8);
        let name = String::from_utf8(name.to_vec()).unwrap();
        found.insert(name, code.map(Instruction::read).collect());
    }
    found
}

/// Edges that the kernel's depth-first search takes back into a loop, and that may not lead there.
fn forbidden_loops(code: &[Instruction]) -> Vec<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        OnTheWay,
        Done,
    }
    let mut seen = vec![Seen::No; code.len()];
    let mut way = vec![(0, 0)];
    seen[0] = Seen::OnTheWay;
    let mut found = Vec::new();
    while let Some((here, next)) = way.last_mut() {
        let here = *here;
        let Some((to, may_loop)) = code[here].edges(here).get(*next).copied() else {
            seen[here] = Seen::Done;
            way.pop();
            continue;
        };
        *next += 1;
        match seen.get(to) {
            Some(Seen::No) => {
                seen[to] = Seen::OnTheWay;
                way.push((to, 0));
            }
            Some(Seen::OnTheWay) if !may_loop => found.push((here, to)),
            _ => {}
        }
    }
    found
}

/// Linux 6.1 refuses a loop whose end falls into its beginning instead of jumping there ("back-edge").
#[test]
fn loops_are_jumped_into() {
    for object in OBJECTS {
        let functions = functions(object);
        assert!(functions.keys().any(|name| name.starts_with("cil_")), "{object}");
        for (name, code) in functions {
            assert_eq!(forbidden_loops(&code), [], "{object}: {name}");
        }
    }
}

#[test]
fn the_search_finds_what_kernels_refuse() {
    let instruction = |code, offset| Instruction {
        code,
        source: 0,
        offset,
        immediate: 0,
    };
    // Jumps over the increment, compares, and goes back to the increment, which falls into the comparison.
    let refused = [
        instruction(JUMP, 1),
        instruction(0x07, 0),
        instruction(JUMP | 0x10, 1),
        instruction(JUMP, -3),
        instruction(JUMP | EXIT, 0),
    ];
    assert_eq!(forbidden_loops(&refused), [(1, 2)]);

    let taken = [
        instruction(0x07, 0),
        instruction(JUMP | 0x10, -2),
        instruction(JUMP | EXIT, 0),
    ];
    assert_eq!(forbidden_loops(&taken), []);
}

#[test]
fn packet_programs_call_no_helper_that_came_later() {
    for object in OBJECTS {
        let mut calls = 0;
        for (name, code) in functions(object) {
            // Calls of other kinds (of kernel functions, of programs' own) say so in the source register.
            let helpers = code
                .iter()
                .filter(|instruction| instruction.code == (JUMP | CALL) && instruction.source == 0);
            for helper in helpers {
                calls += 1;
                assert!(
                    helper.immediate <= LAST_HELPER,
                    "{object}: {name} calls helper {}",
                    helper.immediate
                );
            }
        }
        assert!(calls > 0, "{object}: no calls found");
    }
}
