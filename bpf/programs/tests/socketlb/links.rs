// SPDX-License-Identifier: Apache-2.0

//! Attaching by pinned links: replaced without a gap, kept when the process ends, moved, detached.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use skep_bpf_maps::testing::Frontend;
use skep_bpf_programs::{NodeOptions, SOCKET_PROGRAMS, SocketLb};
use skep_bpf_sys::link::{Attached, CgroupHook, CgroupLinks, LinkError, running};

use crate::world::*;

#[test]
fn replacing_programs_fails_no_connect() {
    with("replace", NodeOptions::default(), |world| {
        let service = at("10.96.0.1:80");
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[tcp_server("10.244.0.1:0")]))?;
        let (stop, connects, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let directory = links_directory(world.node);
        let before = running(&directory, "cil_sock4_connect")?;

        std::thread::scope(|scope| -> Outcome {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Untranslated, there is no route.
                    failed.fetch_add(u64::from(ask_tcp(service).is_err()), Ordering::Relaxed);
                    connects.fetch_add(1, Ordering::Relaxed);
                }
            });
            let result = (0..20).try_for_each(|_| attach(world.node, &world.store, &NodeOptions::default()));
            stop.store(true, Ordering::Relaxed);
            result
        })?;

        assert_ne!(running(&directory, "cil_sock4_connect")?, before);
        assert!(connects.load(Ordering::Relaxed) > 20);
        assert_eq!(failed.load(Ordering::Relaxed), 0);
        Ok(())
    });
}

#[test]
fn a_program_attached_twice_is_updated_in_its_link() {
    with("update", NodeOptions::default(), |world| {
        let directory = links_directory(world.node);
        let links = CgroupLinks::new(&directory, world.node.cgroup_root())?;
        let programs = SocketLb::load(&world.store, SIZES, &NodeOptions::default(), |_| true)?;

        let done = programs.attach(&links, &directory)?;

        assert_eq!(done.len(), SOCKET_PROGRAMS.len());
        assert!(
            done.iter().all(|(_, attached)| *attached == Attached::Updated),
            "{done:?}"
        );
        for program in SOCKET_PROGRAMS {
            assert_eq!(
                links.attached(program.hook)?,
                [running(&directory, program.name)?.unwrap()]
            );
            assert_eq!(links.path(program.name).file_name().unwrap(), program.name);
        }
        Ok(())
    });
}

#[test]
fn programs_that_are_not_wanted_are_detached() {
    with("detach-some", NodeOptions::default(), |world| {
        let directory = links_directory(world.node);
        let links = CgroupLinks::new(&directory, world.node.cgroup_root())?;
        let without_bind = SocketLb::load(&world.store, SIZES, &NodeOptions::default(), |program| {
            !matches!(program.hook, CgroupHook::PostBind4 | CgroupHook::PostBind6)
        })?;

        without_bind.attach(&links, &directory)?;

        assert!(links.attached(CgroupHook::PostBind4)?.is_empty());
        assert_eq!(links.attached(CgroupHook::Connect4)?.len(), 1);
        assert_eq!(fs::read_dir(&directory)?.count(), SOCKET_PROGRAMS.len() - 2);
        Ok(())
    });
}

#[test]
fn programs_of_probes_are_detached_with_the_option() {
    with("detach-probes", NodeOptions::default(), |world| {
        let directory = links_directory(world.node);
        let links = CgroupLinks::new(&directory, world.node.cgroup_root())?;
        let without = SocketLb::load(&world.store, SIZES, &NodeOptions::default(), |program| {
            !matches!(program.hook, CgroupHook::Bind4 | CgroupHook::Bind6)
        })?;

        without.attach(&links, &directory)?;

        assert!(!directory.join("cil_sock4_pre_bind").exists());
        assert!(links.attached(CgroupHook::Bind4)?.is_empty());
        assert_eq!(links.attached(CgroupHook::PostBind4)?.len(), 1);
        Ok(())
    });
}

#[test]
fn everything_can_be_detached() {
    with("detach-all", NodeOptions::default(), |world| {
        let service = at("10.96.0.1:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[at("10.244.0.1:53")]))?;
        let directory = links_directory(world.node);

        udp_client("0.0.0.0:0").connect(service)?;
        assert_eq!(SocketLb::detach_all(&directory)?, SOCKET_PROGRAMS.len());
        assert_eq!(SocketLb::detach_all(&directory)?, 0);

        let error = udp_client("0.0.0.0:0").connect(service).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
        Ok(())
    });
}

#[test]
fn a_link_of_another_cgroup_is_moved() {
    with("move", NodeOptions::default(), |world| {
        let directory = links_directory(world.node);
        let programs = SocketLb::load(&world.store, SIZES, &NodeOptions::default(), |_| true)?;
        let inner = world.node.cgroup_root().join("inner");
        fs::create_dir(&inner)?;

        // There, then back after the cgroup was removed.
        for (cgroup, expected) in [(inner.as_path(), 0), (world.node.cgroup_root(), 1)] {
            let links = CgroupLinks::new(&directory, cgroup)?;
            let done = programs.attach(&links, &directory)?;
            assert!(
                done.iter().all(|(_, attached)| *attached == Attached::Moved),
                "{done:?}"
            );
            let outer = CgroupLinks::new(&directory, world.node.cgroup_root())?;
            assert_eq!(outer.attached(CgroupHook::Connect4)?.len(), expected);
            if cgroup == inner {
                fs::remove_dir(&inner)?;
                // The kernel lets go of the programs some time after the directory is gone.
                let deadline = Instant::now() + Duration::from_secs(30);
                while running(&directory, "cil_sock4_connect")?.is_some() {
                    assert!(Instant::now() < deadline, "still attached");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        assert_eq!(fs::read_dir(&directory)?.count(), SOCKET_PROGRAMS.len());
        Ok(())
    });
}

#[test]
fn errors_name_program_and_path() {
    with("link-errors", NodeOptions::default(), |world| {
        let directory = links_directory(world.node);
        let programs = SocketLb::load(&world.store, SIZES, &NodeOptions::default(), |_| true)?;

        let missing = world.node.cgroup_root().join("missing");
        let error = CgroupLinks::new(&directory, &missing).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot open cgroup {}", missing.display())
        );

        // Not a cgroup at all.
        let links = CgroupLinks::new(&directory, world.node.directory())?;
        let error = programs.attach(&links, &directory).unwrap_err();
        assert!(matches!(error, LinkError::Attach { .. }), "{error}");
        assert!(error.to_string().contains("cil_sock_release"), "{error}");

        // A map in place of a link.
        let path = directory.join("cil_sock_release");
        fs::remove_file(&path)?;
        fs::rename(world.store.path("cilium_skip_lb4"), &path)?;
        let links = CgroupLinks::new(&directory, world.node.cgroup_root())?;
        let error = programs.attach(&links, &directory).unwrap_err();
        let expected = format!(
            "program cil_sock_release: the object pinned at {} is not a link",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
        Ok(())
    });
}

#[test]
fn worlds_do_not_disturb_each_other() {
    with("outer", NodeOptions::default(), |world| {
        world.maps.upsert(
            &Frontend::new(1, at("0.0.0.0:30080"), TCP, &[])
                .flags(skep_bpf_maps::lb::ServiceFlags::NODE_PORT),
        )?;
        assert!(TcpListener::bind(at("127.0.0.1:30080")).is_err());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                with("inner", NodeOptions::default(), |_| {
                    TcpListener::bind(at("127.0.0.1:30080"))?;
                    UdpSocket::bind(at("127.0.0.1:30080"))?;
                    Ok(())
                });
            });
            other.join().unwrap();
        });
        Ok(())
    });
}
