// SPDX-License-Identifier: Apache-2.0

//! Script commands on a client: `kvstore/list`, and for tests `kvstore/update` and `kvstore/delete`.
//!
//! Programs include [`cell()`], which has `kvstore/list` alone; suites add [`write_commands`].

mod json;

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Member, Members};
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec};

use crate::client::Client;
use crate::types::{KeyValue, Lifetime};

/// Provides the command `kvstore/list`.
pub fn cell() -> Cell {
    Cell::module("kvstore-commands", "Shows the key-value store").provide(list_command)
}

/// Provides the commands `kvstore/update` and `kvstore/delete`: for tests.
pub fn write_commands() -> Cell {
    Cell::module("kvstore-write-commands", "Changes the key-value store").provide(writers)
}

fn list_command(client: Client) -> Member<CommandHandle> {
    Member(handle(Verb::List, &client))
}

fn writers(client: Client) -> Members<CommandHandle> {
    Members(
        [Verb::Update, Verb::Delete]
            .map(|verb| handle(verb, &client))
            .into(),
    )
}

fn handle(verb: Verb, client: &Client) -> CommandHandle {
    Arc::new(KvstoreCommand {
        spec: spec(verb),
        verb,
        client: client.clone(),
    })
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    List,
    Update,
    Delete,
}

struct KvstoreCommand {
    spec: Spec,
    verb: Verb,
    client: Client,
}

fn spec(verb: Verb) -> Spec {
    match verb {
        Verb::List => Spec::new("kvstore/list", "List keys and their values, sorted by key")
            .args("[prefix] [file]")
            .detail("With a file, writes to it instead of stdout.")
            .flag(Flag::string("output", "plain", "Form of the values: plain or json").short('o'))
            .flag(Flag::bool("keys-only", "Print no values"))
            .flag(Flag::bool("values-only", "Print no keys")),
        Verb::Update => Spec::new("kvstore/update", "Set a key to the content of a file").args("key file"),
        Verb::Delete => Spec::new("kvstore/delete", "Delete a key, if it exists").args("key"),
    }
}

#[async_trait]
impl Command for KvstoreCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        match (self.verb, inv.args()) {
            (Verb::List, args @ ([] | [_] | [_, _])) => {
                let printer = Printer::new(&inv)?;
                let prefix = args.first().map_or("", String::as_str);
                let listing = cx.until_interrupted(self.client.list(prefix)).await?;
                let items = listing.map_err(|error| CommandError::chain(&error))?.items;
                let text: Vec<u8> = items.iter().flat_map(|item| printer.print(item)).collect();
                output(cx, args.get(1).map(String::as_str), &text)
            }
            (Verb::List, _) => Err(CommandError::usage("expected a prefix and a file at most")),
            (Verb::Update, [key, file]) => {
                let content = cx
                    .read_file(file)
                    .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
                let value = content.trim().to_owned();
                let written = self.client.put(key, value, Lifetime::Permanent);
                let written = cx.until_interrupted(written).await?;
                written.map_err(|error| CommandError::chain(&error))?;
                Ok(Outcome::Silent)
            }
            (Verb::Update, _) => Err(CommandError::usage("expected a key and a file")),
            (Verb::Delete, [key]) => {
                let deleted = cx.until_interrupted(self.client.delete(key)).await?;
                deleted.map_err(|error| CommandError::chain(&error))?;
                Ok(Outcome::Silent)
            }
            (Verb::Delete, _) => Err(CommandError::usage("expected a key")),
        }
    }
}

fn output(cx: &Context<'_>, file: Option<&str>, text: &[u8]) -> Result<Outcome, CommandError> {
    match file {
        None => Ok(Outcome::stdout(String::from_utf8_lossy(text))),
        Some(file) => {
            cx.write_file(file, text)
                .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
            Ok(Outcome::Output(Output::default()))
        }
    }
}

/// How keys are printed.
struct Printer {
    is_json: bool,
    shows_keys: bool,
    shows_values: bool,
}

impl Printer {
    fn new(inv: &Invocation) -> Result<Self, CommandError> {
        let (keys_only, values_only) = (inv.bool("keys-only"), inv.bool("values-only"));
        if keys_only && values_only {
            return Err(CommandError::new(
                "--keys-only and --values-only are mutually exclusive",
            ));
        }
        let is_json = match inv.string("output") {
            "plain" => false,
            "json" => true,
            other => {
                return Err(CommandError::new(format_args!(
                    "unexpected output format {other:?}"
                )));
            }
        };
        Ok(Self {
            is_json,
            shows_keys: !values_only,
            shows_values: !keys_only,
        })
    }

    fn print(&self, item: &KeyValue) -> Vec<u8> {
        let mut out = Vec::new();
        if self.shows_keys {
            out.extend_from_slice(format!("# {}\n", item.key).as_bytes());
        }
        if self.shows_values {
            if self.is_json {
                match json::indent(&item.value) {
                    Ok(text) => out.extend_from_slice(&text),
                    Err(error) => out.extend_from_slice(format!("ERROR: {error}").as_bytes()),
                }
            } else {
                out.extend_from_slice(&item.value);
            }
            out.push(b'\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use hive_script::{Environment, Lifetime as ScriptLifetime, State, default_commands, named};

    use super::*;
    use crate::memory::Memory;
    use crate::options::{ClientKind, ClientOptions};

    /// The error of a command on an empty store.
    async fn failure(line: &str) -> String {
        let options = ClientOptions::new("memory", ClientKind::Full);
        let (client, _driver) = Client::new(Arc::new(Memory::new()), options);
        let mut commands = default_commands();
        commands.extend([Verb::List, Verb::Update, Verb::Delete].map(|verb| named(handle(verb, &client))));
        let mut state = State::new(
            std::env::temp_dir(),
            commands,
            Environment::new(),
            ScriptLifetime::unlimited(),
            Box::new(|_| {}),
        );
        let error = state
            .execute("test", &format!("{line}\n"))
            .await
            .expect_err("it fails");
        error.to_string()
    }

    #[tokio::test]
    async fn errors_are_those_of_cilium() {
        for (line, text) in [
            (
                "kvstore/list --keys-only --values-only",
                "--keys-only and --values-only are mutually exclusive",
            ),
            ("kvstore/list -o yaml", "unexpected output format \"yaml\""),
            ("kvstore/list a b c", "expected a prefix and a file at most"),
            ("kvstore/update a", "expected a key and a file"),
            ("kvstore/update a no-such-file", "no-such-file"),
            ("kvstore/delete", "expected a key"),
        ] {
            let error = failure(line).await;
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
