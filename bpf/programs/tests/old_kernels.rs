// SPDX-License-Identifier: Apache-2.0

//! What verifiers of older kernels reject, as far as the instructions of the packet programs show it.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

const OBJECTS: [&str; 3] = ["tc_datapath", "tc_overlay", "xdp_datapath"];
/// `BPF_FUNC_task_pt_regs`: helpers are numbered in the order they came, and this is the last of 5.15.
const LAST_HELPER: i32 = 175;
/// `STT_FUNC`
const FUNCTION: u8 = 2;
/// `SHT_SYMTAB`, `SHT_REL`
const SYMBOLS: usize = 2;
const RELOCATIONS: usize = 9;
/// Source registers of calls: of helpers, of functions of the object.
const HELPER: u8 = 0;
const LOCAL: u8 = 1;
/// The frame pointer.
const FRAME: u8 = 10;
/// `MAX_BPF_STACK`
const STACK: usize = 512;

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
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            destination: bytes[1] & 15,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            immediate: i32::from_le_bytes(bytes[4..8].try_into().unwrap()),
        }
    }

    fn is_call(self, of: u8) -> bool {
        self.code == (JUMP | CALL) && self.source == of
    }

    /// Successors of the instruction at `here`, in the order of the kernel's search, and whether each may be a back edge.
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

/// An object: ELF, 64 bit, little endian.
struct Object(Vec<u8>);

struct Symbol {
    name: String,
    kind: u8,
    section: usize,
    offset: usize,
    length: usize,
}

struct Function {
    code: Vec<Instruction>,
    /// Functions that it calls.
    calls: BTreeSet<String>,
}

impl Object {
    fn open(name: &str) -> Self {
        Self(fs::read(format!("{}/{name}.bpf.o", env!("OUT_DIR"))).unwrap())
    }

    /// A field of the header of a section.
    fn section(&self, index: usize, at: usize, length: usize) -> usize {
        number(&self.0, number(&self.0, 40, 8) + 64 * index + at, length)
    }

    fn content(&self, index: usize) -> &[u8] {
        &self.0[self.section(index, 24, 8)..][..self.section(index, 32, 8)]
    }

    fn sections(&self, kind: usize) -> impl Iterator<Item = usize> {
        (0..number(&self.0, 60, 2)).filter(move |index| self.section(*index, 4, 4) == kind)
    }

    fn symbols(&self) -> Vec<Symbol> {
        let table = self.sections(SYMBOLS).next().unwrap();
        let names = self.content(self.section(table, 40, 4));
        let symbols = self.content(table).chunks_exact(24);
        symbols
            .map(|symbol| {
                let name = names[number(symbol, 0, 4)..].split(|byte| *byte == 0).next();
                Symbol {
                    name: String::from_utf8(name.unwrap().to_vec()).unwrap(),
                    kind: symbol[4] & 15,
                    section: number(symbol, 6, 2),
                    offset: number(symbol, 8, 8),
                    length: number(symbol, 16, 8),
                }
            })
            .collect()
    }

    /// Symbols that instructions refer to, by section and offset of the instruction.
    fn relocations(&self) -> BTreeMap<(usize, usize), usize> {
        let mut found = BTreeMap::new();
        for table in self.sections(RELOCATIONS) {
            let of = self.section(table, 44, 4);
            for entry in self.content(table).chunks_exact(16) {
                found.insert((of, number(entry, 0, 8)), number(entry, 12, 4));
            }
        }
        found
    }

    /// Programs, and the functions that they call.
    fn functions(&self) -> BTreeMap<String, Function> {
        let (symbols, relocations) = (self.symbols(), self.relocations());
        let functions = || symbols.iter().filter(|symbol| symbol.kind == FUNCTION);
        let at = |section, offset: i64| {
            let is_there = |symbol: &&Symbol| {
                let start = symbol.offset as i64;
                symbol.section == section && (start..start + symbol.length as i64).contains(&offset)
            };
            functions().find(is_there).unwrap().name.clone()
        };
        let mut found = BTreeMap::new();
        for symbol in functions() {
            let code: Vec<Instruction> = self.content(symbol.section)[symbol.offset..][..symbol.length]
                .chunks_exact(8)
                .map(Instruction::read)
                .collect();
            let mut calls = BTreeSet::new();
            for (index, instruction) in code.iter().enumerate().filter(|(_, call)| call.is_call(LOCAL)) {
                let place = symbol.offset + 8 * index;
                let after = 8 * (i64::from(instruction.immediate) + 1);
                let called = relocations
                    .get(&(symbol.section, place))
                    .map(|index| &symbols[*index]);
                calls.insert(match called {
                    Some(called) if called.kind == FUNCTION => called.name.clone(),
                    Some(section) => at(section.section, after),
                    None => at(symbol.section, place as i64 + after),
                });
            }
            found.insert(symbol.name.clone(), Function { code, calls });
        }
        found
    }
}

/// Back edges of the kernel's depth-first search that it rejects.
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

/// Linux 6.1 rejects a loop whose end falls into its beginning instead of jumping there ("back-edge").
#[test]
fn loops_are_jumped_into() {
    for object in OBJECTS {
        let functions = Object::open(object).functions();
        assert!(functions.keys().any(|name| name.starts_with("cil_")), "{object}");
        for (name, function) in functions {
            assert_eq!(forbidden_loops(&function.code), [], "{object}: {name}");
        }
    }
}

#[test]
fn the_search_finds_what_kernels_reject() {
    let instruction = |code, offset| Instruction {
        code,
        destination: 0,
        source: 0,
        offset,
        immediate: 0,
    };
    // Jumps over the increment, compares, and goes back to the increment, which falls into the comparison.
    let rejected = [
        instruction(JUMP, 1),
        instruction(0x07, 0),
        instruction(JUMP | 0x10, 1),
        instruction(JUMP, -3),
        instruction(JUMP | EXIT, 0),
    ];
    assert_eq!(forbidden_loops(&rejected), [(1, 2)]);

    let accepted = [
        instruction(0x07, 0),
        instruction(JUMP | 0x10, -2),
        instruction(JUMP | EXIT, 0),
    ];
    assert_eq!(forbidden_loops(&accepted), []);
}

#[test]
fn packet_programs_call_no_helper_that_came_later() {
    for object in OBJECTS {
        let mut calls = 0;
        for (name, function) in Object::open(object).functions() {
            // Calls of kernel functions and of the object's own have another source register.
            let code = function.code.iter();
            for helper in code.filter(|instruction| instruction.is_call(HELPER)) {
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

/// Bytes of the stack that a function uses itself.
fn frame(code: &[Instruction]) -> usize {
    let (mut deepest, mut copies) = (0, BTreeSet::new());
    for instruction in code {
        let Instruction {
            code,
            destination,
            source,
            offset,
            immediate,
        } = *instruction;
        let below = match code & 7 {
            // Stores and loads.
            2 | 3 if destination == FRAME => -i64::from(offset),
            1 if source == FRAME => -i64::from(offset),
            _ if code == 0x07 && copies.remove(&destination) => -i64::from(immediate),
            _ => 0,
        };
        if code == 0xbf && source == FRAME {
            copies.insert(destination);
        }
        deepest = deepest.max(below);
    }
    usize::try_from(deepest).unwrap()
}

/// The deepest chain of calls from a function, with what each uses of the stack: Linux 6.1 rounds that up to 32.
fn deepest<'a>(functions: &'a BTreeMap<String, Function>, name: &'a str) -> Vec<(&'a str, usize)> {
    let function = &functions[name];
    let used = frame(&function.code).max(1).next_multiple_of(32);
    let below = function.calls.iter().map(|called| deepest(functions, called));
    let below = below.max_by_key(|chain| chain.iter().map(|(_, used)| used).sum::<usize>());
    [(name, used)]
        .into_iter()
        .chain(below.into_iter().flatten())
        .collect()
}

#[test]
fn call_chains_fit_on_the_stack() {
    for object in OBJECTS {
        let functions = Object::open(object).functions();
        for name in functions.keys().filter(|name| name.starts_with("cil_")) {
            let chain = deepest(&functions, name);
            let used: usize = chain.iter().map(|(_, used)| used).sum();
            assert!(
                chain.len() > 1 && used <= STACK,
                "{object}: {used} bytes: {chain:?}"
            );
        }
    }
}
