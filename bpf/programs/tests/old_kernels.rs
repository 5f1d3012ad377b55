// SPDX-License-Identifier: Apache-2.0

//! What verifiers of older kernels reject, as far as the instructions of the packet programs show it.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
};

use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex,
    SymbolKind, read::elf::ElfFile64,
};

const OBJECTS: [&str; 3] = ["tc_datapath", "tc_overlay", "xdp_datapath"];
/// `BPF_FUNC_task_pt_regs`: helpers are numbered in the order they came, and this is the last of 5.15.
const LAST_HELPER: i32 = 175;
/// Source registers of calls: of helpers, of functions of the object.
const HELPER: u8 = 0;
const LOCAL: u8 = 1;
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

struct Function {
    code: Vec<Instruction>,
    /// Functions that it calls, by the instruction that does.
    called: HashMap<usize, String>,
}

/// Programs of an object, and the functions that they call.
fn functions(name: &str) -> BTreeMap<String, Function> {
    let file = fs::read(format!("{}/{name}.bpf.o", env!("OUT_DIR"))).unwrap();
    let object = ElfFile64::<Endianness>::parse(&*file).unwrap();
    // Symbols that instructions refer to, by section and offset of the instruction.
    let relocations: HashMap<(SectionIndex, u64), RelocationTarget> = object
        .sections()
        .flat_map(|section| {
            let relocations = section.relocations();
            relocations.map(move |(offset, relocation)| ((section.index(), offset), relocation.target()))
        })
        .collect();
    let functions = || {
        object
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text)
    };
    let at = |section, offset| {
        let mut functions = functions();
        let found = functions.find(|symbol| {
            let start = symbol.address();
            symbol.section_index() == section && (start..start + symbol.size()).contains(&offset)
        });
        found.unwrap()
    };
    let mut found = BTreeMap::new();
    for symbol in functions() {
        let section = symbol.section_index().unwrap();
        let content = object.section_by_index(section).unwrap();
        let code = content
            .data_range(symbol.address(), symbol.size())
            .unwrap()
            .unwrap();
        let code: Vec<Instruction> = code.chunks_exact(8).map(Instruction::read).collect();
        let mut called = HashMap::new();
        for (index, instruction) in code.iter().enumerate().filter(|(_, call)| call.is_call(LOCAL)) {
            let place = symbol.address() + 8 * index as u64;
            let after = 8 * (i64::from(instruction.immediate) + 1);
            let callee = match relocations.get(&(section, place)) {
                Some(RelocationTarget::Symbol(index)) => object.symbol_by_index(*index).unwrap(),
                Some(target) => panic!("{name}: call of {target:?}"),
                None => at(Some(section), place.checked_add_signed(after).unwrap()),
            };
            // A reference to a whole section: the instruction says where in it.
            let callee = match callee.kind() {
                SymbolKind::Section => at(callee.section_index(), after.try_into().unwrap()),
                _ => callee,
            };
            called.insert(index, callee.name().unwrap().to_owned());
        }
        found.insert(symbol.name().unwrap().to_owned(), Function { code, called });
    }
    found
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
        let functions = functions(object);
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
        for (name, function) in functions(object) {
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
    let callees: BTreeSet<_> = function.called.values().collect();
    let below = callees.into_iter().map(|called| deepest(functions, called));
    let below = below.max_by_key(|chain| chain.iter().map(|(_, used)| used).sum::<usize>());
    [(name, used)]
        .into_iter()
        .chain(below.into_iter().flatten())
        .collect()
}

#[test]
fn call_chains_fit_on_the_stack() {
    for object in OBJECTS {
        let functions = functions(object);
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

/// Functions of maps, which the kernel calls in place of helpers (`bpf_map_update_elem` and the like): before 6.4 they
/// return `int`, so that the upper half of the register has no sign.
const MAP_HELPERS: [i32; 7] = [2, 3, 51, 87, 88, 89, 164];
const ALU: u8 = 4;
const ALU64: u8 = 7;
/// The other operand is a register.
const BY_REGISTER: u8 = 0x08;
const MOVE: u8 = 0xb0;
const SHIFT_LEFT: u8 = 0x60;
const EQUAL: u8 = 0x10;
const NOT_EQUAL: u8 = 0x50;

/// Where a function uses more than the lower half of what a helper of a map returned, and whether it returns that.
/// `halves` are functions that do.
fn uses_of_halves(function: &Function, halves: &BTreeSet<String>) -> (BTreeSet<usize>, bool) {
    let code = &function.code;
    let (mut wrong, mut is_returned) = (BTreeSet::new(), false);
    // Instructions, with the registers whose upper half is unknown there.
    let (mut way, mut seen) = (vec![(0, 0_u16)], BTreeSet::new());
    while let Some((here, mut unknown)) = way.pop() {
        if !seen.insert((here, unknown)) {
            continue;
        }
        let instruction = code[here];
        let is_unknown = |register: u8| unknown >> register & 1 != 0;
        let Instruction {
            code: kind,
            destination,
            source,
            immediate,
            ..
        } = instruction;
        let by_register = kind & BY_REGISTER != 0;
        match (kind & 7, kind & 0xf0) {
            (JUMP, CALL) => {
                // Calls overwrite these.
                unknown &= !0x3f;
                let half = match source {
                    HELPER => MAP_HELPERS.contains(&immediate),
                    LOCAL => function
                        .called
                        .get(&here)
                        .is_some_and(|name| halves.contains(name)),
                    _ => false,
                };
                unknown |= u16::from(half);
            }
            (JUMP, EXIT) => is_returned |= is_unknown(0),
            (JUMP, ALWAYS) => {}
            (JUMP, compares) => {
                let with_zero = !by_register && immediate == 0 && [EQUAL, NOT_EQUAL].contains(&compares);
                if (is_unknown(destination) && !with_zero) || (by_register && is_unknown(source)) {
                    wrong.insert(here);
                }
            }
            (ALU64, MOVE) if by_register && is_unknown(source) => unknown |= 1 << destination,
            // What is in the upper half goes.
            (ALU64, SHIFT_LEFT) if !by_register && immediate == 32 => unknown &= !(1 << destination),
            (ALU64, MOVE) | (ALU | 0 | 1, _) => unknown &= !(1 << destination),
            (ALU64, _) if is_unknown(destination) || (by_register && is_unknown(source)) => {
                wrong.insert(here);
            }
            // `BPF_DW`
            (3, _) if kind & 0x18 == 0x18 && is_unknown(source) => {
                wrong.insert(here);
            }
            _ => {}
        }
        way.extend(instruction.edges(here).into_iter().map(|(to, _)| (to, unknown)));
    }
    (wrong, is_returned)
}

/// Kernels before 6.4 return errors of maps in the lower half of the register: compared with all of it, -17 is another
/// number there.
#[test]
fn errors_of_maps_are_read_as_integers() {
    for object in OBJECTS.into_iter().chain(["cgroup_socketlb", "iter_flowgc"]) {
        let functions = functions(object);
        let mut halves = BTreeSet::new();
        loop {
            let before = halves.len();
            for (name, function) in &functions {
                let (wrong, is_returned) = uses_of_halves(function, &halves);
                assert_eq!(wrong, BTreeSet::new(), "{object}: {name}");
                if is_returned {
                    halves.insert(name.clone());
                }
            }
            if halves.len() == before {
                break;
            }
        }
    }
}

#[test]
fn the_search_finds_comparisons_of_whole_registers() {
    let instruction = |code, destination, source, offset, immediate| Instruction {
        code,
        destination,
        source,
        offset,
        immediate,
    };
    let update = instruction(JUMP | CALL, 0, HELPER, 0, 2);
    let copy = instruction(ALU64 | MOVE | BY_REGISTER, 6, 0, 0, 0);
    let exit = instruction(JUMP | EXIT, 0, 0, 0, 0);
    let uses = |compare| {
        let code = vec![update, copy, compare, exit];
        let called = HashMap::new();
        uses_of_halves(&Function { code, called }, &BTreeSet::new())
    };
    let found = (BTreeSet::from([2]), true);

    assert_eq!(uses(instruction(JUMP | EQUAL, 6, 0, 0, -17)), found);
    assert_eq!(
        uses(instruction(JUMP | 0xc0, 6, 0, 0, 0)),
        found,
        "less than zero"
    );
    for right in [
        instruction(JUMP32 | EQUAL, 6, 0, 0, -17),
        instruction(JUMP | EQUAL, 6, 0, 0, 0),
        instruction(ALU64 | SHIFT_LEFT, 6, 0, 0, 32),
    ] {
        assert_eq!(uses(right), (BTreeSet::new(), true));
    }
}
