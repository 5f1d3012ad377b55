// SPDX-License-Identifier: Apache-2.0

//! What a workload wants of its pods, and its status.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_types::Kind;

use super::schedule::is_selected;
use crate::object::{is_deleting, list, now, number, text};

/// Label with the digest of the template that a pod was made of.
const TEMPLATE: &str = "pod-template-hash";

#[derive(Debug)]
pub(super) enum Action {
    Create(Kind, Value),
    /// Deletes the pod of this name.
    Delete(String),
    /// Binds the pod to this node.
    Bind(String),
}

impl Action {
    /// The pod that is made or deleted by it, and which of both.
    pub(super) fn pod(&self) -> Option<(&str, bool)> {
        match self {
            Self::Create(kind, pod) => (*kind == Kind::POD).then(|| (text(pod, "/metadata/name"), true)),
            Self::Delete(name) => Some((name, false)),
            Self::Bind(_) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Desired {
    pub(super) actions: Vec<Action>,
    pub(super) status: Option<Value>,
}

impl Desired {
    pub(super) fn bind(node: String) -> Self {
        Self {
            actions: vec![Action::Bind(node)],
            status: None,
        }
    }
}

fn digest(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    format!("{:08x}", hasher.finish() & 0xffff_ffff)
}

/// Pods of a workload that have not ended.
fn owned(owner: &Value, pods: &[Arc<Value>]) -> Vec<Arc<Value>> {
    let uid = text(owner, "/metadata/uid");
    let is_owned = |pod: &&Arc<Value>| {
        let owners = list(pod, "/metadata/ownerReferences").iter();
        owners.into_iter().any(|owner| text(owner, "/uid") == uid)
    };
    pods.iter().filter(is_owned).cloned().collect()
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = list(pod, "/status/conditions").iter();
    !is_deleting(pod)
        && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// A pod of a workload; `distinction` is in its name.
fn pod(owner: &Value, template: &Value, distinction: &str, digest: &str) -> Action {
    let name = format!("{}-{distinction}", text(owner, "/metadata/name"));
    let mut metadata = template["metadata"].clone();
    metadata["name"] = name.into();
    metadata["namespace"] = owner["metadata"]["namespace"].clone();
    metadata["labels"][TEMPLATE] = digest.into();
    metadata["ownerReferences"] = json!([reference(owner)]);
    Action::Create(
        Kind::POD,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}),
    )
}

fn reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Random letters, for names.
fn letters() -> String {
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5)
        .map(|_| char::from(alphabet[fastrand::usize(..alphabet.len())]))
        .collect()
}

/// A number, or a share of `all`, rounded up.
fn amount(value: &Value, all: u64, default: u64) -> u64 {
    match value {
        Value::Number(number) => number.as_u64().unwrap_or(default),
        Value::String(text) => match text.strip_suffix('%').and_then(|share| share.parse::<u64>().ok()) {
            Some(share) => (all * share).div_ceil(100),
            None => text.parse().unwrap_or(default),
        },
        _ => default,
    }
}

/// One pod on each node that is selected.
pub(super) fn daemon_set(object: &Value, pods: &[Arc<Value>], nodes: &[Arc<Value>]) -> Desired {
    let template = &object["spec"]["template"];
    let digest = digest(template);
    let owned = owned(object, pods);
    let wanted: Vec<&str> = nodes
        .iter()
        .filter(|node| is_selected(&template["spec"], node))
        .map(|node| text(node, "/metadata/name"))
        .collect();
    let mut actions = Vec::new();
    let on = |node: &str| {
        owned
            .iter()
            .filter(move |pod| text(pod, "/spec/nodeName") == node)
            .collect::<Vec<_>>()
    };
    let is_new = |pod: &Value| text(pod, &format!("/metadata/labels/{TEMPLATE}")) == digest;
    let count = u64::try_from(wanted.len()).unwrap_or_default();
    let is_on_delete = text(object, "/spec/updateStrategy/type") == "OnDelete";
    let limit = amount(
        &object["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"],
        count,
        1,
    )
    .max(1);
    let ready = wanted
        .iter()
        .filter(|node| on(node).iter().any(|pod| is_ready(pod)))
        .count();
    let mut unavailable = count.saturating_sub(u64::try_from(ready).unwrap_or_default());
    let mut updated = 0;
    for node in &wanted {
        let mut present = on(node).into_iter();
        match present.next() {
            None => {
                let Action::Create(kind, mut made) = pod(object, template, &letters(), &digest) else {
                    continue;
                };
                made["spec"]["nodeName"] = (*node).into();
                actions.push(Action::Create(kind, made));
            }
            Some(pod) if is_deleting(pod) => {}
            Some(pod) if has_ended(pod) => {
                actions.push(Action::Delete(text(pod, "/metadata/name").to_owned()))
            }
            Some(pod) if is_new(pod) => updated += 1,
            Some(_) if is_on_delete => {}
            Some(pod) => {
                // One that is not ready costs nothing.
                if !is_ready(pod) || unavailable < limit {
                    unavailable += u64::from(is_ready(pod));
                    actions.push(Action::Delete(text(pod, "/metadata/name").to_owned()));
                }
            }
        }
        actions.extend(
            present
                .filter(|pod| !is_deleting(pod))
                .map(|pod| Action::Delete(text(pod, "/metadata/name").to_owned())),
        );
    }
    let unwanted = owned
        .iter()
        .filter(|pod| !wanted.contains(&text(pod, "/spec/nodeName")) && !is_deleting(pod));
    actions.extend(unwanted.map(|pod| Action::Delete(text(pod, "/metadata/name").to_owned())));
    let current = wanted.iter().filter(|node| !on(node).is_empty()).count();
    let status = json!({
        "desiredNumberScheduled": wanted.len(), "currentNumberScheduled": current,
        "numberReady": ready, "numberAvailable": ready, "updatedNumberScheduled": updated,
        "numberMisscheduled": 0, "numberUnavailable": wanted.len() - ready,
        "observedGeneration": object["metadata"]["generation"],
    });
    Desired {
        actions,
        status: Some(status),
    }
}

/// As many pods as there are replicas.
pub(super) fn deployment(object: &Value, pods: &[Arc<Value>]) -> Desired {
    let template = &object["spec"]["template"];
    let digest = digest(template);
    let owned = owned(object, pods);
    let replicas = number(object, "/spec/replicas").unwrap_or(1);
    let rolling = &object["spec"]["strategy"]["rollingUpdate"];
    let is_recreated = text(object, "/spec/strategy/type") == "Recreate";
    let surge = if is_recreated {
        0
    } else {
        amount(&rolling["maxSurge"], replicas, 1)
    };
    let limit = match amount(&rolling["maxUnavailable"], replicas, 0) {
        0 if surge == 0 => 1,
        limit => limit,
    };
    let count = |pods: &[&Arc<Value>]| u64::try_from(pods.len()).unwrap_or_default();
    let alive: Vec<&Arc<Value>> = owned
        .iter()
        .filter(|pod| !is_deleting(pod) && !has_ended(pod))
        .collect();
    let is_new = |pod: &&&Arc<Value>| text(pod, &format!("/metadata/labels/{TEMPLATE}")) == digest;
    let new: Vec<&Arc<Value>> = alive.iter().filter(is_new).copied().collect();
    let old: Vec<&Arc<Value>> = alive.iter().filter(|pod| !is_new(pod)).copied().collect();
    let ready = u64::try_from(alive.iter().filter(|pod| is_ready(pod)).count()).unwrap_or_default();
    let mut actions = Vec::new();
    let delete = |pod: &Arc<Value>| Action::Delete(text(pod, "/metadata/name").to_owned());
    let must_wait = is_recreated && owned.len() > new.len();
    let missing = replicas.saturating_sub(count(&new));
    let room = (replicas + surge).saturating_sub(count(&alive));
    if !must_wait {
        let made = missing.min(room);
        actions.extend((0..made).map(|_| pod(object, template, &format!("{digest}-{}", letters()), &digest)));
    }
    // Pods that are not ready go first: they cost nothing.
    let mut spare = ready.saturating_sub(replicas.saturating_sub(limit));
    for pod in &old {
        if !is_ready(pod) || is_recreated {
            actions.push(delete(pod));
        } else if spare > 0 {
            spare -= 1;
            actions.push(delete(pod));
        }
    }
    let excess = count(&new).saturating_sub(replicas);
    actions.extend(
        new.iter()
            .take(usize::try_from(excess).unwrap_or_default())
            .map(|pod| delete(pod)),
    );
    let ended = owned.iter().filter(|pod| has_ended(pod) && !is_deleting(pod));
    actions.extend(ended.map(delete));
    let is_available = ready >= replicas.saturating_sub(limit);
    let text_of = if is_available { "True" } else { "False" };
    let status = json!({
        "replicas": count(&alive), "updatedReplicas": count(&new), "readyReplicas": ready, "availableReplicas": ready,
        "unavailableReplicas": replicas.saturating_sub(ready),
        "observedGeneration": object["metadata"]["generation"],
        "conditions": [
            {"type": "Available", "status": text_of, "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ],
    });
    Desired {
        actions,
        status: Some(status),
    }
}

/// One pod that succeeds, and others while they fail, up to a limit.
pub(super) fn job(object: &Value, pods: &[Arc<Value>]) -> Desired {
    let owned = owned(object, pods);
    let phase = |wanted: &str| {
        owned
            .iter()
            .filter(|pod| text(pod, "/status/phase") == wanted)
            .count()
    };
    let (succeeded, failed) = (phase("Succeeded"), phase("Failed"));
    let limit = number(object, "/spec/backoffLimit").unwrap_or(6);
    let has_failed = u64::try_from(failed).unwrap_or_default() > limit;
    let active = owned.len() - succeeded - failed;
    let mut actions = Vec::new();
    let completions = number(object, "/spec/completions").unwrap_or(1);
    let is_complete = u64::try_from(succeeded).unwrap_or_default() >= completions;
    if !is_complete && !has_failed && active == 0 {
        let mut template = object["spec"]["template"].clone();
        template["metadata"]["labels"]["batch.kubernetes.io/job-name"] = object["metadata"]["name"].clone();
        template["metadata"]["labels"]["job-name"] = object["metadata"]["name"].clone();
        actions.push(pod(object, &template, &letters(), &digest(&template)));
    }
    let ended = match (is_complete, has_failed) {
        (true, _) => Some("Complete"),
        (_, true) => Some("Failed"),
        _ => None,
    };
    let mut status = json!({"active": active, "succeeded": succeeded, "failed": failed});
    if text(object, "/status/startTime").is_empty() {
        status["startTime"] = now().into();
    }
    if let Some(kind) = ended
        && list(object, "/status/conditions").is_empty()
    {
        status["conditions"] = json!([{"type": kind, "status": "True", "lastTransitionTime": now()}]);
        if is_complete {
            status["completionTime"] = now().into();
        }
    }
    Desired {
        actions,
        status: Some(status),
    }
}

/// A Job at each time of the schedule; whether there is one now.
pub(super) fn cron_job(object: &Value, last: Option<Timestamp>, now: Timestamp) -> (Desired, bool) {
    let schedule = text(object, "/spec/schedule");
    let is_due = last.is_some_and(|last| is_between(schedule, last, now));
    if !is_due {
        return (Desired::default(), false);
    }
    let template = &object["spec"]["jobTemplate"];
    let mut metadata = template["metadata"].clone();
    metadata["name"] = format!("{}-{}", text(object, "/metadata/name"), now.as_second() / 60).into();
    metadata["namespace"] = object["metadata"]["namespace"].clone();
    metadata["ownerReferences"] = json!([reference(object)]);
    let job =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]});
    let kind = Kind::new("batch", "v1", "Job", "jobs", true);
    let desired = Desired {
        actions: vec![Action::Create(kind, job)],
        status: Some(json!({"lastScheduleTime": now.strftime("%FT%TZ").to_string()})),
    };
    (desired, true)
}

/// Whether a time of a schedule is after `last` and not after `now`.
fn is_between(schedule: &str, last: Timestamp, now: Timestamp) -> bool {
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return false;
    };
    let is_met = |minutes: i64| {
        let Ok(time) = Timestamp::from_second(minutes * 60) else {
            return false;
        };
        let time = time.to_zoned(jiff::tz::TimeZone::UTC);
        let weekdays = time.weekday().to_sunday_zero_offset();
        [
            (minute, time.minute(), 0),
            (hour, time.hour(), 0),
            (day, time.day(), 1),
            (month, time.month(), 1),
            (weekday, weekdays, 0),
        ]
        .into_iter()
        .all(|(field, value, lowest)| field_matches(field, value, lowest))
    };
    let (first, last) = (last.as_second() / 60 + 1, now.as_second() / 60);
    // A day at most: what was missed longer ago is not made up for.
    (first.max(last - 1440)..=last).any(is_met)
}

/// Whether a field of a schedule has a value: `*`, `*/5`, `1,2`, `1-5`.
fn field_matches(field: &str, value: i8, lowest: i8) -> bool {
    field.split(',').any(|part| {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let step: i8 = step.parse().unwrap_or(1).max(1);
        match range.split_once('-') {
            _ if range == "*" => (value - lowest) % step == 0,
            Some((from, to)) => {
                let (from, to) = (from.parse().unwrap_or(i8::MAX), to.parse().unwrap_or(i8::MIN));
                (from..=to).contains(&value) && (value - from) % step == 0
            }
            None => range.parse() == Ok(value),
        }
    })
}
