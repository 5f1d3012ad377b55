// SPDX-License-Identifier: Apache-2.0

//! Why programs are not loaded.

use skep_bpf_sys::MapError;

/// Why programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A map is missing or does not fit.
    #[error("object {object}: its maps are not ready")]
    Map {
        object: &'static str,
        #[source]
        source: MapError,
    },

    /// The object built into this binary cannot be read.
    #[error("object {object}: cannot open it")]
    Open {
        object: &'static str,
        #[source]
        source: libbpf_rs::Error,
    },

    /// A map of the object cannot be replaced by the pinned one.
    #[error("object {object}: cannot use the pinned map {map}")]
    Reuse {
        object: &'static str,
        map: String,
        #[source]
        source: libbpf_rs::Error,
    },

    /// The kernel refused a program. `log` has what libbpf and the verifier said.
    #[error("object {object}: cannot load it: {log}")]
    Load {
        object: &'static str,
        log: String,
        #[source]
        source: libbpf_rs::Error,
    },

    /// A program that answers a question did not run.
    #[error("object {object}: cannot run it")]
    Run {
        object: &'static str,
        #[source]
        source: libbpf_rs::Error,
    },

    /// The object has no such program: it was built from other sources.
    #[error("object {object}: no program {program}")]
    NoProgram {
        object: &'static str,
        program: &'static str,
    },

    /// A program's descriptor cannot be duplicated.
    #[error("object {object}: cannot keep program {program}")]
    Keep {
        object: &'static str,
        program: &'static str,
        #[source]
        source: std::io::Error,
    },

    /// The counters of an object that has them cannot be read.
    #[error("object {object}: cannot read its counters")]
    Counter {
        object: &'static str,
        #[source]
        source: libbpf_rs::Error,
    },

    /// The kernel did not take the types of the maps' fields.
    #[error("object {object}: cannot load the types of its maps")]
    Types {
        object: &'static str,
        #[source]
        source: std::io::Error,
    },

    /// The clock, host namespace or a feature of the kernel cannot be determined.
    #[error("object {object}: cannot probe the kernel")]
    Probe {
        object: &'static str,
        #[source]
        source: skep_base_net::netns::NetnsError,
    },
}
