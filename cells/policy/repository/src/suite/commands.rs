// SPDX-License-Identifier: Apache-2.0

//! Commands of suite `policy`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use hive::{Cell, Members};
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_identity::{Labels, NumericIdentity, Scope};
use skep_identity_cache::{
    IdentitySource, LocalIdentities, LocalIdentity, SecurityIdentity, Writer as IdentityWriter,
};
use skep_policy_maps::PolicyMaps;
use skep_policy_model::{Content, Context as ObjectContext, PolicyObject, document};
use skep_policy_sources::{Origin, PolicyRow};
use statedb::{Db, Revision, RwTable};
use tokio::time::{sleep, timeout};

use crate::{PolicyComputation, Repository};

/// First global identity.
const FIRST: u32 = 1000;
const WAIT: Duration = Duration::from_secs(10);

pub(super) fn cell() -> Cell {
    Cell::module("policy-commands", "Changes policies from scripts").provide(commands)
}

fn commands(
    db: Db,
    repository: Repository,
    maps: PolicyMaps,
    objects: RwTable<PolicyRow>,
    writer: IdentityWriter,
    local: LocalIdentities,
) -> Members<CommandHandle> {
    let world = Arc::new(World {
        db,
        repository,
        maps,
        objects,
        writer,
        local,
        state: Mutex::new(State {
            next_identity: FIRST,
            ..State::default()
        }),
    });
    let specs = [
        (
            Action::Allocate,
            "identity/allocate",
            "Allocate an identity",
            "labels",
        ),
        (Action::Release, "identity/release", "Release an identity", "id"),
        (
            Action::Identities,
            "identity/list",
            "List allocated identities",
            "",
        ),
        (
            Action::LocalIdentities,
            "idm/list",
            "List identities of endpoints",
            "",
        ),
        (Action::Import, "policy/import", "Import a policy", "file"),
        (Action::Remove, "policy/remove", "Remove a policy", "file"),
        (
            Action::ComputeAll,
            "policy/compute-all",
            "Compute all policies",
            "",
        ),
        (Action::Add, "policyrepo/add", "Add the rules of a policy", "file"),
        (Action::Rules, "policyrepo/list", "List rules", ""),
        (
            Action::Selectors,
            "policyrepo/selectorcache",
            "List selectors of peers",
            "",
        ),
        (Action::Bump, "policyrepo/bump-revision", "Begin a revision", ""),
        (
            Action::Create,
            "endpoint/create",
            "Create an endpoint",
            "identity labels",
        ),
        (Action::Endpoints, "endpoint/list", "List endpoints", ""),
        (
            Action::Regenerate,
            "endpoint/regen-all",
            "Regenerate all endpoints",
            "revision",
        ),
        (
            Action::Wait,
            "endpoint/wait-for-policy-revision",
            "Wait until all endpoints have a revision",
            "revision",
        ),
    ];
    let commands = specs.into_iter().map(|(action, name, summary, args)| {
        let spec = Spec::new(name, summary).args(args);
        let world = world.clone();
        Arc::new(PolicyCommand { spec, action, world }) as CommandHandle
    });
    Members(commands.collect())
}

#[derive(Clone, Copy)]
enum Action {
    Allocate,
    Release,
    Identities,
    LocalIdentities,
    Import,
    Remove,
    ComputeAll,
    Add,
    Rules,
    Selectors,
    Bump,
    Create,
    Endpoints,
    Regenerate,
    Wait,
}

struct PolicyCommand {
    spec: Spec,
    action: Action,
    world: Arc<World>,
}

struct World {
    db: Db,
    repository: Repository,
    maps: PolicyMaps,
    objects: RwTable<PolicyRow>,
    writer: IdentityWriter,
    local: LocalIdentities,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_identity: u32,
    /// With the number of uses.
    identities: BTreeMap<NumericIdentity, (Arc<Labels>, usize)>,
    of_networks: Vec<LocalIdentity>,
    endpoints: BTreeMap<u16, (NumericIdentity, Arc<Labels>)>,
}

fn failed(error: impl std::error::Error + 'static) -> CommandError {
    CommandError::chain(&error)
}

fn one(args: &[String]) -> Result<&str, CommandError> {
    match args {
        [one] => Ok(one),
        args => {
            let count = args.len();
            Err(CommandError::new(format!(
                "expected one arg but got {count}, see usage details"
            )))
        }
    }
}

fn parse_labels(text: &str) -> Result<Arc<Labels>, CommandError> {
    let labels: Result<Labels, _> = text.split(',').map(str::parse).collect();
    Ok(Arc::new(labels.map_err(failed)?))
}

/// `[1000 {k8s:app=web} ]`.
fn identities_text<'a>(identities: impl Iterator<Item = (NumericIdentity, &'a Labels)>) -> Outcome {
    let entries = identities.map(|(id, labels)| {
        let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
        format!("{id} {{{}}} ", labels.join(","))
    });
    Outcome::stdout(format!("[{}]\n", entries.collect::<String>()))
}

#[async_trait]
impl Command for PolicyCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let (world, args) = (&self.world, inv.args());
        match self.action {
            Action::Allocate => {
                let labels = parse_labels(one(args)?)?;
                let id = world.allocate(&labels);
                let id = id.map_err(|error| CommandError::new(format!("allocate: {error}")))?;
                Ok(Outcome::stdout(format!("{id}\n")))
            }
            Action::Release => world.release(one(args)?),
            Action::Identities => {
                let state = world.state.lock();
                let identities = state.identities.iter();
                Ok(identities_text(
                    identities.map(|(id, (labels, _))| (*id, &**labels)),
                ))
            }
            Action::LocalIdentities => {
                let state = world.state.lock();
                let identities: BTreeMap<_, _> = state.endpoints.values().cloned().collect();
                Ok(identities_text(
                    identities.iter().map(|(id, labels)| (*id, &**labels)),
                ))
            }
            Action::Import | Action::Add => {
                let row = world.read(cx, one(args)?)?;
                let revision = world
                    .change(cx, |txn| world.objects.insert(txn, row).map(drop))
                    .await?;
                Ok(Outcome::stdout(match self.action {
                    Action::Import => format!("Imported policy change, rev={revision}\n"),
                    _ => format!("Added rules, revision={revision}\n"),
                }))
            }
            Action::Remove => {
                let row = world.read(cx, one(args)?)?;
                let known = world
                    .objects
                    .get(&world.db.read(), PolicyRow::BY_KEY.key(&row.key()))
                    .is_some();
                let revision = match known {
                    true => {
                        world
                            .change(cx, |txn| world.objects.delete(txn, &row).map(drop))
                            .await?
                    }
                    // Nothing to remove is a revision, too.
                    false => world.repository.bump_revision(),
                };
                Ok(Outcome::stdout(format!("Removed policy, rev={revision}\n")))
            }
            Action::ComputeAll => {
                world.repository.recompute(None).map_err(failed)?;
                Ok(Outcome::stdout(""))
            }
            Action::Rules => {
                let entries = world.repository.with(|policies| {
                    let entries = policies.rules().map(|rule| document::entry(rule, None));
                    entries.collect::<Vec<_>>()
                });
                Ok(Outcome::stdout(document::text(&entries) + "\n"))
            }
            Action::Selectors => {
                let selectors = world.repository.with(|policies| {
                    let selectors = policies.peers().iter().map(|(_, cached)| {
                        let selection: Vec<u32> = cached.selection.iter().map(|id| id.get()).collect();
                        json!({ "selector": cached.selector.as_str(), "users": cached.users, "identities": selection })
                    });
                    selectors.collect::<Vec<_>>()
                });
                Ok(Outcome::stdout(format!("{:#}\n", Value::from(selectors))))
            }
            Action::Bump => {
                let revision = world.repository.bump_revision();
                Ok(Outcome::stdout(format!("Bumped revision to {revision}\n")))
            }
            Action::Create => {
                let [identity, labels] = args else {
                    let count = args.len();
                    return Err(CommandError::new(format!(
                        "expected two args but got {count}, see usage details"
                    )));
                };
                let identity: NumericIdentity = identity.parse().map_err(failed)?;
                world.create(cx, identity, parse_labels(labels)?).await
            }
            Action::Endpoints => {
                let state = world.state.lock();
                let endpoints = state.endpoints.iter().map(|(id, (identity, labels))| {
                    let row = world.maps.get(&world.db.read(), *id);
                    let realized = row
                        .and_then(|row| row.current())
                        .map(|realized| realized.revision);
                    let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
                    json!({ "id": id, "identity": identity.get(), "labels": labels, "revision": realized })
                        .to_string()
                });
                let endpoints: Vec<String> = endpoints.collect();
                Ok(Outcome::stdout(format!("[{}]\n", endpoints.join(",\n"))))
            }
            Action::Regenerate | Action::Wait => {
                let revision: Revision = one(args)?.parse().map_err(failed)?;
                if matches!(self.action, Action::Regenerate) {
                    world.maps.update().map_err(failed)?;
                }
                world.wait(cx, revision).await?;
                Ok(Outcome::stdout(""))
            }
        }
    }
}

impl World {
    fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, Box<dyn std::error::Error>> {
        if let Some(id) = labels.reserved_identity() {
            return Ok(id);
        }
        let mut state = self.state.lock();
        if labels.scope() != Scope::Global {
            let local = self.local.allocate(labels)?;
            let id = local.id();
            state.of_networks.push(local);
            return Ok(id);
        }
        let known = state
            .identities
            .iter_mut()
            .find(|(_, (known, _))| known == labels);
        if let Some((id, (_, uses))) = known {
            *uses += 1;
            return Ok(*id);
        }
        let id = NumericIdentity::new(state.next_identity);
        state.next_identity += 1;
        state.identities.insert(id, (labels.clone(), 1));
        drop(state);
        self.upsert(id, labels)?;
        Ok(id)
    }

    fn upsert(&self, id: NumericIdentity, labels: &Arc<Labels>) -> Result<(), statedb::Error> {
        let mut txn = self.writer.write();
        let row = SecurityIdentity {
            id,
            source: IdentitySource::Kubernetes,
            cluster: Default::default(),
            labels: labels.clone(),
            object: Default::default(),
        };
        self.writer.upsert(&mut txn, row)?;
        txn.commit();
        Ok(())
    }

    fn release(&self, text: &str) -> Result<Outcome, CommandError> {
        let id: NumericIdentity = text.parse().map_err(failed)?;
        let mut state = self.state.lock();
        let Some((_, uses)) = state.identities.get_mut(&id) else {
            return Err(CommandError::new(format!("identity {id} not found")));
        };
        *uses -= 1;
        let is_released = *uses == 0;
        if is_released {
            state.identities.remove(&id);
            let mut txn = self.writer.write();
            let deleted = self.writer.delete(&mut txn, IdentitySource::Kubernetes, id);
            deleted.map_err(failed)?;
            txn.commit();
        }
        Ok(Outcome::stdout(format!("released={is_released}\n")))
    }

    /// The valid policy of a file.
    fn read(&self, cx: &Context<'_>, file: &str) -> Result<PolicyRow, CommandError> {
        let text = cx.read_file(file).or_else(|_| std::fs::read_to_string(file));
        let text = text.map_err(|error| CommandError::new(format!("failed to read {file}: {error}")))?;
        let object: Value = serde_norway::from_str(&text).map_err(failed)?;
        let parsed = self.repository.with(|policies| {
            let context = ObjectContext {
                settings: policies.settings(),
                services: &[],
            };
            PolicyObject::parse(&object, &context)
        });
        let parsed = parsed.map_err(failed)?;
        let Content::Rules(_) = parsed.content else {
            return Err(CommandError::new(format!("{file} has no rules")));
        };
        Ok(PolicyRow {
            origin: Origin::CustomResource,
            kind: parsed.kind.name(),
            namespace: parsed.namespace,
            name: parsed.name,
            object: Arc::new(object),
        })
    }

    /// Changes objects; waits until endpoints have the rules. Returns their revision.
    async fn change(
        &self,
        cx: &Context<'_>,
        change: impl FnOnce(&mut statedb::WriteTxn) -> Result<(), statedb::Error>,
    ) -> Result<Revision, CommandError> {
        let revision = self.repository.with(|policies| policies.revision()) + 1;
        let mut changes = skep_policy_maps::MapStates::changes(&self.repository);
        {
            let mut txn = self.db.write(&[&self.objects]);
            change(&mut txn).map_err(failed)?;
            txn.commit();
        }
        let published = timeout(WAIT, changes.wait_for(|current| *current >= revision));
        let published = cx.until_interrupted(published).await?;
        drop(published.map_err(failed)?.map_err(failed)?);
        self.wait(cx, revision).await?;
        Ok(revision)
    }

    /// Waits until all endpoints have a revision.
    async fn wait(&self, cx: &Context<'_>, revision: Revision) -> Result<(), CommandError> {
        let table = self.maps.table();
        let is_done = || {
            let snapshot = self.db.read();
            table.all(&snapshot).all(|row| {
                row.current()
                    .is_some_and(|realized| realized.revision >= revision)
            })
        };
        self.until(cx, is_done)
            .await
            .map_err(|error| CommandError::new(format!("error waiting for all endpoints: {error}")))
    }

    async fn until(&self, cx: &Context<'_>, is_done: impl Fn() -> bool) -> Result<(), CommandError> {
        let done = async {
            while !is_done() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        let done = cx.until_interrupted(timeout(WAIT, done)).await?;
        done.map_err(|_| CommandError::new("context deadline exceeded"))
    }

    async fn create(
        &self,
        cx: &Context<'_>,
        identity: NumericIdentity,
        labels: Arc<Labels>,
    ) -> Result<Outcome, CommandError> {
        let endpoint = {
            let mut state = self.state.lock();
            let endpoint = state.endpoints.last_key_value().map_or(1, |(last, _)| last + 1);
            state.endpoints.insert(endpoint, (identity, labels.clone()));
            if !identity.is_reserved() && !state.identities.contains_key(&identity) {
                state.identities.insert(identity, (labels.clone(), 1));
                self.upsert(identity, &labels).map_err(failed)?;
            }
            endpoint
        };
        self.repository.recompute(Some(identity)).map_err(failed)?;
        self.maps.request([(endpoint, identity)]).map_err(failed)?;
        let is_computed = || {
            let snapshot = self.db.read();
            let key = PolicyComputation::BY_IDENTITY.key(&identity.get());
            let row = self.repository.0.computations.get(&snapshot, key);
            row.is_some_and(|row| row.revision >= 1)
        };
        self.until(cx, is_computed).await?;
        self.wait(cx, 1).await?;
        Ok(Outcome::stdout(""))
    }
}
