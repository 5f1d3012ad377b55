// SPDX-License-Identifier: Apache-2.0

//! The commands as programs, in directories and namespaces of their own; each twice: the second time changes nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    fs, io,
    os::{
        fd::AsFd as _,
        unix::fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::{Command, Output},
    sync::mpsc,
    thread,
    time::Duration,
};

use skep_base_net::{LinkSpec, Netlink};
use skep_bpf_sys::{
    filter::Filters,
    link::InterfaceHook,
    mount::{CGROUP_ROOT_FALLBACK, find_cgroup2, is_bpffs, is_cgroup2},
    testing::{Node, ProgramKind, pin, program},
};

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skep-init"))
        .args(args)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// What a command that succeeds prints.
fn says(args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = run(args, variables);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(args: &[&str]) -> String {
    let output = run(args, &[]);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn plugins_are_installed_over_old_ones() {
    let root = tempfile::tempdir().unwrap();
    let (host, plugin) = (root.path().join("host"), root.path().join("skep-cni"));
    fs::write(&plugin, "new").unwrap();
    let bin = host.join("opt/cni/bin");
    let args = ["install-cni", "--plugin", text(&plugin), "--loopback", "/nowhere"];
    let variables = [("HOST_PREFIX", text(&host))];

    let said = says(&args, &variables);

    assert!(said.contains("Ignored: cannot read /nowhere"), "{said}");
    let installed = bin.join("cilium-cni");
    assert_eq!(
        fs::metadata(&installed).unwrap().permissions().mode() & 0o777,
        0o755
    );
    fs::write(&installed, "old").unwrap();
    let keep = [("HOST_PREFIX", text(&host)), ("OVERWRITE_CILIUM", "false")];
    says(&args, &keep);
    assert_eq!(fs::read_to_string(&installed).unwrap(), "old");
    says(&args, &variables);
    assert_eq!(fs::read_to_string(&installed).unwrap(), "new");
    assert_eq!(fs::read_dir(&bin).unwrap().count(), 1, "temporary files stay");

    fs::remove_file(&plugin).unwrap();
    let error = fails(&[
        "install-cni",
        "--plugin",
        text(&plugin),
        "--host-prefix",
        text(&host),
    ]);
    assert!(
        error.contains(&format!("cannot read {}", plugin.display())),
        "{error}"
    );
}

#[test]
fn the_configuration_is_removed_only_on_request() {
    let root = tempfile::tempdir().unwrap();
    let names = || {
        let mut names: Vec<String> = fs::read_dir(root.path().join("net.d"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let all = [
        "05-cilium.conflist",
        "10-other.conf",
        "10-other.conf.cilium_bak",
        "cilium.conf",
    ];
    fs::create_dir(root.path().join("net.d")).unwrap();
    for name in all {
        fs::write(root.path().join("net.d").join(name), "{}").unwrap();
    }
    let (config, conf) = (root.path().to_owned(), root.path().join("net.d"));
    let args = [
        "uninstall-cni",
        "--config-dir",
        text(&config),
        "--conf-dir",
        text(&conf),
    ];

    says(&args, &[]);
    fs::write(config.join("cni-uninstall"), "true\n").unwrap();
    says(&args, &[("CILIUM_CUSTOM_CNI_CONF", "true")]);
    assert_eq!(names(), all);
    says(&args, &[]);
    assert_eq!(names(), all[1..3]);
    assert_eq!(says(&args, &[]), "");
}

#[test]
fn sysctls_are_written_now_and_for_the_next_boot() {
    let root = tempfile::tempdir().unwrap();
    let interfaces = root.path().join("sys/net/ipv4/conf");
    for name in ["all", "eth0", "lxc1", "cilium_host"] {
        fs::create_dir_all(interfaces.join(name)).unwrap();
        fs::write(interfaces.join(name).join("rp_filter"), "1\n").unwrap();
    }
    let (sys, conf) = (root.path().join("sys"), root.path().join("sysctl.d"));
    let args = [
        "sysctl-fix",
        "--procfs-sys",
        text(&sys),
        "--sysctl-conf-dir",
        text(&conf),
    ];

    says(&args, &[]);

    let value = |name: &str| fs::read_to_string(interfaces.join(name).join("rp_filter")).unwrap();
    assert_eq!(
        ["all", "eth0", "lxc1", "cilium_host"].map(value),
        ["0", "1\n", "0", "0"]
    );
    let file = conf.join("99-zzz-override_cilium.conf");
    let written = fs::read_to_string(&file).unwrap();
    assert!(
        written.contains("\nnet.ipv4.conf.all.rp_filter = 0\n"),
        "{written}"
    );
    let again = says(&args, &[]);
    assert_eq!(again, format!("{} is up to date\n", file.display()));
}

#[test]
fn waits_for_contents() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("ready");
    fs::write(&path, "").unwrap();

    let error = fails(&["wait-for", text(&path), "--timeout", "0"]);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            fs::write(&path, "now").unwrap();
        });
        let said = says(&["wait-for", text(&path), "--timeout", "60"], &[]);
        assert_eq!(said, format!("Waiting for {}\n", path.display()));
    });

    assert!(error.contains("ready is still missing or empty"), "{error}");
    assert_eq!(says(&["wait-for", text(&path)], &[]), "");
}

#[test]
fn file_systems_are_mounted_in_the_namespaces_of_the_host() {
    // Threads of the node would be in its namespaces.
    let (to_outside, commands) = mpsc::channel::<Vec<String>>();
    let (answers, from_outside) = mpsc::channel();
    let outside = thread::spawn(move || {
        for args in commands {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            answers.send(says(&args, &[])).unwrap();
        }
    });
    Node::run("init-mounts", move |node| -> io::Result<()> {
        let directory = node.directory();
        let (bpf, cgroup) = (directory.join("fs/bpf"), directory.join("fs/cgroup"));
        // A /proc whose process 1 is this thread.
        let namespaces = directory.join("proc/1/ns");
        fs::create_dir_all(&namespaces)?;
        let own = Path::new("/proc").join(fs::read_link("/proc/thread-self")?);
        for name in ["mnt", "cgroup"] {
            symlink(own.join("ns").join(name), namespaces.join(name))?;
        }
        let host_proc = format!("--host-proc={}", directory.join("proc").display());

        for (command, path) in [("mount-bpf-fs", &bpf), ("mount-cgroup", &cgroup)] {
            let args = [command, text(path), &host_proc];
            to_outside.send(args.map(str::to_owned).to_vec()).unwrap();
            let said = from_outside.recv().unwrap();
            assert!(said.starts_with("Mounting "), "{said}");
            let said = says(&args[..2], &[]);
            assert!(
                said.contains(&format!(" is mounted at {}", path.display())),
                "{said}"
            );
        }

        assert!(is_bpffs(&bpf) && is_cgroup2(&cgroup));
        let found = find_cgroup2().unwrap_or_else(|| CGROUP_ROOT_FALLBACK.into());
        let said = says(&["mount-cgroup"], &[]);
        assert_eq!(said, format!("cgroup2 is mounted at {}\n", found.display()));
        let error = fails(&["mount-cgroup", "/proc"]);
        assert!(
            error.contains("/proc is a proc file system, not cgroup2"),
            "{error}"
        );
        Ok(())
    })
    .unwrap();
    outside.join().unwrap();
}

#[test]
fn state_of_the_datapath_is_removed_and_that_of_others_stays() {
    Node::run("init-clean", |node| -> io::Result<()> {
        let net = Netlink::open().map_err(io::Error::other)?;
        for (name, peer) in [
            ("eth0", "lxcpeer"),
            ("cilium_host", "cilium_net"),
            ("lxc12", "tmp12"),
        ] {
            let pair = LinkSpec::veth(name, LinkSpec::new().name(peer));
            net.add_link(pair).map_err(io::Error::other)?;
        }
        let filters = Filters::new("eth0").map_err(io::Error::other)?;
        for name in ["cil_from_netdev", "other"] {
            let program = program(ProgramKind::Classifier, name)?;
            filters
                .attach(
                    name,
                    program.as_fd(),
                    InterfaceHook::Ingress,
                    1 + u16::from(name == "other"),
                )
                .map_err(io::Error::other)?;
        }
        let root = node.bpf_root();
        let pins = [
            "cilium/devices/eth0/x",
            "tc/globals/cilium_lxc",
            "tc/globals/theirs",
        ];
        for path in pins.map(|pin| root.join(pin)) {
            fs::create_dir_all(path.parent().unwrap())?;
            pin(program(ProgramKind::Xdp, "x")?.as_fd(), &path)?;
        }
        let state = node.directory().join("run/state");
        fs::create_dir_all(state.join("12"))?;
        let conf = node.directory().join("05-cilium.conflist");
        fs::write(&conf, "{}")?;
        let run_dir = state.parent().unwrap();
        let args = [
            "clean-state",
            "--bpf-root",
            text(&root),
            "--state-dir",
            text(run_dir),
        ];
        let there = || pins.map(|pin| root.join(pin).exists());

        assert_eq!(
            says(&args, &[("CLEAN_CILIUM_STATE", "false")]),
            "The state stays\n"
        );
        assert_eq!(there(), [true; 3]);

        let said = says(&args, &[("CLEAN_CILIUM_BPF_STATE", "true")]);
        assert!(said.contains("Detaching cil_from_netdev-eth0"), "{said}");
        assert_eq!(there(), [false, false, true]);
        let left = filters.list(InterfaceHook::Ingress).map_err(io::Error::other)?;
        let left: Vec<_> = left.into_iter().map(|filter| filter.name).collect();
        assert_eq!(left, ["other-eth0"]);
        assert!(state.exists() && conf.exists());

        let all = [
            ("CLEAN_CILIUM_STATE", "true"),
            ("WRITE_CNI_CONF_WHEN_READY", text(&conf)),
        ];
        says(&args, &all);
        assert!(!state.exists() && !conf.exists());
        let links = net.links().map_err(io::Error::other)?;
        let mut links: Vec<_> = links.into_iter().map(|link| link.name).collect();
        links.sort();
        assert_eq!(links, ["lo"], "the pair of lxcpeer went with it");
        assert_eq!(says(&args, &all), "");
        Ok(())
    })
    .unwrap();
}
