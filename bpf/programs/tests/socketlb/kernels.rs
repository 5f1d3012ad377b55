// SPDX-License-Identifier: Apache-2.0

//! The oldest kernel that is supported, Linux 5.15, as far as a newer one can tell.

use std::{collections::BTreeMap, net::TcpListener};

use libbpf_rs::libbpf_sys;
use skep_bpf_maps::{lb::ServiceFlags, testing::Frontend};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

/// `BPF_FUNC_task_pt_regs`: helpers are numbered in the order they came, and this is the last of 5.15.
const LAST_HELPER: u32 = 175;

/// Helper functions that the programs of an object call, with the program that does.
fn helpers(object: &str) -> BTreeMap<u32, String> {
    /// `BPF_JMP | BPF_CALL`.
    const CALL: u8 = 0x85;
    let object = libbpf_rs::ObjectBuilder::default().open_file(object).unwrap();
    let mut found = BTreeMap::new();
    for program in object.progs() {
        for instruction in program.insns() {
            // Calls of other kinds (of kernel functions, of programs' own) say so in the source register.
            if instruction.code == CALL && instruction.src_reg() == 0 {
                found.insert(
                    instruction.imm.cast_unsigned(),
                    program.name().to_string_lossy().into_owned(),
                );
            }
        }
    }
    found
}

#[test]
fn programs_call_no_helper_that_came_later() {
    for name in ["cgroup_socketlb", "socket_clock"] {
        let mut found = helpers(&format!("{}/{name}.bpf.o", env!("OUT_DIR")));
        assert!(!found.is_empty(), "{name}: no calls found");
        // Only reached where the kernel was found to have it; elsewhere the verifier never looks at it.
        found.remove(&libbpf_sys::BPF_FUNC_set_retval);
        let newer: Vec<_> = found.range(LAST_HELPER + 1..).collect();
        assert!(newer.is_empty(), "{name}: {newer:?}");
    }
}

#[test]
fn without_a_choice_of_errors_rejected_calls_are_not_permitted() {
    let options = NodeOptions {
        chooses_errors: Some(false),
        ..NodeOptions::default()
    };
    with("old-errors", options, |world| {
        world
            .maps
            .upsert(&Frontend::new(1, at("10.96.0.1:80"), TCP, &[]))?;
        world
            .maps
            .upsert(&Frontend::new(2, at("0.0.0.0:30080"), TCP, &[]).flags(ServiceFlags::NODE_PORT))?;
        let denied = Some(libc::EPERM);

        assert_eq!(refusal(ask_tcp(at("10.96.0.1:80"))), denied);
        assert_eq!(refusal(TcpListener::bind(at("0.0.0.0:30080"))), denied);
        Ok(())
    });
}

#[test]
fn the_class_id_of_a_host_extension_is_heeded_where_the_kernel_has_such_ids() {
    let options = NodeOptions {
        mke: true,
        ..NodeOptions::default()
    };
    // Loading is the test: kernels without class ids refuse programs that ask for them.
    with("mke", options, |world| {
        let (service, backend) = (at("10.96.0.1:80"), tcp_server("10.244.0.1:0"));
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;
        assert_eq!(ask_tcp(service)?.0, backend);
        Ok(())
    });
}
