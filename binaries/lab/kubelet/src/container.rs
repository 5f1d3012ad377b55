// SPDX-License-Identifier: Apache-2.0

//! Sandboxes and containers of pods, as the container runtime gets them.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use k8s_cri::v1::{
    Capability, ContainerConfig, ContainerMetadata, DnsConfig, ImageSpec, Int64Value, KeyValue,
    LinuxContainerConfig, LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext,
    Mount, MountPropagation, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    SecurityProfile, security_profile::ProfileType,
};
use serde_json::Value;

use crate::{
    env::{Env, expand},
    node::Node,
    object::{flag, list, text, texts},
};

/// Label of sandboxes and containers.
pub(crate) const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// What containers do not see of `/proc`.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: &[&str] = &[
    "/proc/asound",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

fn labels(pod: &Value) -> HashMap<String, String> {
    [
        ("io.kubernetes.pod.name", text(pod, "/metadata/name")),
        ("io.kubernetes.pod.namespace", text(pod, "/metadata/namespace")),
        (UID_LABEL, text(pod, "/metadata/uid")),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn namespaces(pod: &Value) -> NamespaceOption {
    let mode = |is_node: bool, own: NamespaceMode| match is_node {
        true => NamespaceMode::Node.into(),
        false => own.into(),
    };
    NamespaceOption {
        network: mode(flag(pod, "/spec/hostNetwork"), NamespaceMode::Pod),
        pid: mode(flag(pod, "/spec/hostPID"), NamespaceMode::Container),
        ipc: mode(flag(pod, "/spec/hostIPC"), NamespaceMode::Pod),
        ..NamespaceOption::default()
    }
}

fn seccomp(own: &Value, of_pod: &Value) -> SecurityProfile {
    let kind = [own, of_pod].map(|context| text(context, "/seccompProfile/type"));
    let kind = kind.into_iter().find(|kind| !kind.is_empty());
    let profile_type = match kind {
        Some("RuntimeDefault") => ProfileType::RuntimeDefault,
        _ => ProfileType::Unconfined,
    };
    SecurityProfile {
        profile_type: profile_type.into(),
        ..SecurityProfile::default()
    }
}

/// The sandbox of a pod.
pub(crate) fn sandbox(node: &Node, pod: &Value) -> PodSandboxConfig {
    let (namespace, name, uid) = (
        text(pod, "/metadata/namespace"),
        text(pod, "/metadata/name"),
        text(pod, "/metadata/uid"),
    );
    let is_on_host = flag(pod, "/spec/hostNetwork");
    let all = list(pod, "/spec/initContainers")
        .iter()
        .chain(list(pod, "/spec/containers"));
    let privileged = all
        .into_iter()
        .any(|container| flag(container, "/securityContext/privileged"));
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            attempt: 0,
        }),
        hostname: match is_on_host {
            true => String::new(),
            false => name.to_owned(),
        },
        log_directory: node.logs(namespace, name, uid).display().to_string(),
        // There is no name server in a lab.
        dns_config: (!is_on_host).then(DnsConfig::default),
        labels: labels(pod),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                privileged,
                seccomp: Some(SecurityProfile {
                    profile_type: ProfileType::Unconfined.into(),
                    ..SecurityProfile::default()
                }),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

/// A container of a pod.
pub(crate) fn config(
    pod: &Value,
    container: &Value,
    attempt: u32,
    env: &Env,
    volumes: &BTreeMap<String, PathBuf>,
    hosts: &Path,
) -> ContainerConfig {
    let expanded = |pointer: &str| {
        let words = texts(container, pointer);
        words.iter().map(|word| expand(word, env)).collect()
    };
    let mut mounts: Vec<Mount> = list(container, "/volumeMounts")
        .iter()
        .filter_map(|mount| Some(volume_mount(mount, volumes.get(text(mount, "/name"))?)))
        .collect();
    if !mounts.iter().any(|mount| mount.container_path == "/etc/hosts") {
        mounts.push(Mount {
            container_path: "/etc/hosts".to_owned(),
            host_path: hosts.display().to_string(),
            ..Mount::default()
        });
    }
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: text(container, "/name").to_owned(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: text(container, "/image").to_owned(),
            ..ImageSpec::default()
        }),
        command: expanded("/command"),
        args: expanded("/args"),
        working_dir: text(container, "/workingDir").to_owned(),
        envs: env
            .iter()
            .map(|(key, value)| KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        mounts,
        labels: labels(pod),
        log_path: log(text(container, "/name"), attempt),
        linux: Some(LinuxContainerConfig {
            security_context: Some(security(pod, container)),
            ..LinuxContainerConfig::default()
        }),
        ..ContainerConfig::default()
    }
}

/// Log of a run of a container, in the folder of its pod.
#[must_use]
pub fn log(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

fn volume_mount(mount: &Value, source: &Path) -> Mount {
    let propagation = match text(mount, "/mountPropagation") {
        "HostToContainer" => MountPropagation::PropagationHostToContainer,
        "Bidirectional" => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    let source = match text(mount, "/subPath") {
        "" => source.to_owned(),
        path => source.join(path),
    };
    Mount {
        container_path: text(mount, "/mountPath").to_owned(),
        host_path: source.display().to_string(),
        readonly: flag(mount, "/readOnly"),
        propagation: propagation.into(),
        ..Mount::default()
    }
}

fn security(pod: &Value, container: &Value) -> LinuxContainerSecurityContext {
    let nothing = Value::Null;
    let own = container.get("securityContext").unwrap_or(&nothing);
    let of_pod = pod.pointer("/spec/securityContext").unwrap_or(&nothing);
    let privileged = flag(own, "/privileged");
    let id = |pointer: &str| {
        let value = own.pointer(pointer).or_else(|| of_pod.pointer(pointer));
        value.and_then(Value::as_i64).map(|value| Int64Value { value })
    };
    let paths = |all: &[&str]| match privileged {
        true => Vec::new(),
        false => all.iter().map(|path| (*path).to_owned()).collect(),
    };
    LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: texts(own, "/capabilities/add"),
            drop_capabilities: texts(own, "/capabilities/drop"),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        namespace_options: Some(namespaces(pod)),
        run_as_user: id("/runAsUser"),
        run_as_group: id("/runAsGroup"),
        readonly_rootfs: flag(own, "/readOnlyRootFilesystem"),
        no_new_privs: own.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(seccomp(own, of_pod)),
        ..LinuxContainerSecurityContext::default()
    }
}
