// SPDX-License-Identifier: Apache-2.0

//! Compiles the BPF programs and generates their skeletons. Downloads nothing.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use libbpf_cargo::SkeletonBuilder;

/// Name of the C file in `bpf/progs`, without `.bpf.c`.
const OBJECTS: &[&str] = &[
    "cgroup_socketlb",
    "iter_flowgc",
    "iter_socketterm",
    "map_types",
    "socket_clock",
    "tc_datapath",
    "tc_overlay",
    "xdp_datapath",
];

/// Those that feature `count-calls` compiles once more, with counters.
const COUNTED: &[&str] = &["tc_datapath", "tc_overlay", "xdp_datapath"];

fn main() -> std::process::ExitCode {
    match build() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " "));
            std::process::ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../include");
    println!("cargo::rerun-if-changed=../progs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = find_clang()?;
    let arguments = clang_arguments();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let compile = |name: &str, object: &str, arguments: &[OsString]| {
        let source = Path::new("../progs").join(format!("{name}.bpf.c"));
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{object}.bpf.o")))
            .clang(&clang)
            .clang_args(arguments)
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .map_err(|error| format!("cannot compile {} with {clang}: {error:#}", source.display()))
    };
    for name in OBJECTS {
        compile(name, name, &arguments)?;
    }
    if env::var_os("CARGO_FEATURE_COUNT_CALLS").is_some() {
        let counting = [&arguments[..], &["-DCOUNT_CALLS".into()]].concat();
        for name in COUNTED {
            compile(name, &format!("{name}_counted"), &counting)?;
        }
    }
    Ok(())
}

/// `$CLANG`, or the newest clang in `$PATH` (Debian names them `clang-19` and the like).
fn find_clang() -> Result<String, String> {
    if let Ok(clang) = env::var("CLANG") {
        return runs(&clang)
            .then_some(clang.clone())
            .ok_or(format!("CLANG={clang} does not run"));
    }
    let names = std::iter::once("clang".to_owned()).chain((14..=24).rev().map(|n| format!("clang-{n}")));
    names.into_iter().find(|name| runs(name)).ok_or_else(|| {
        "clang is needed to compile the BPF programs, and was not found: install it (Debian, Ubuntu: \
         apt-get install clang; Fedora: dnf install clang) or set CLANG"
            .to_owned()
    })
}

fn runs(clang: &str) -> bool {
    Command::new(clang)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

fn clang_arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-I../include"]
        .map(Into::into)
        .into();
    // Debian keeps asm/*.h in a directory for each architecture, which `-target bpf` does not search.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let triplet = match arch.as_str() {
        "arm" => "arm-linux-gnueabihf".to_owned(),
        "x86" => "i386-linux-gnu".to_owned(),
        "powerpc64" => "powerpc64le-linux-gnu".to_owned(),
        other => format!("{other}-linux-gnu"),
    };
    let multiarch = Path::new("/usr/include").join(triplet);
    if fs::metadata(&multiarch).is_ok_and(|found| found.is_dir()) {
        arguments.push("-idirafter".into());
        arguments.push(multiarch.into());
    }
    arguments
}
