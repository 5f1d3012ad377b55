// SPDX-License-Identifier: Apache-2.0

//! Script commands on a client: `kvstore/list`, and for tests `kvstore/update` and `kvstore/delete`.
//!
//! Programs include [`cell()`], which has `kvstore/list` alone; suites add [`write_commands`].

mod json;

use std::sync::Arc;

use bytes::Bytes;

use async_trait::async_trait;
use hive::{All, Cell, Member, Members};
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec};

use crate::backend::Cause;
use crate::client::Client;
use crate::types::{KeyValue, Lifetime};

/// Values that are not texts, shown and read as JSON by the commands. Cells provide members, as
/// `Member<Arc<dyn ValueForm>>`.
pub trait ValueForm: Send + Sync {
    /// Whether the value of a key is such a value.
    fn covers(&self, key: &str) -> bool;

    fn show(&self, value: &[u8]) -> Result<Vec<u8>, Cause>;

    fn read(&self, text: &[u8]) -> Result<Vec<u8>, Cause>;
}

hive::catalogue!(cell);

type Forms = Arc<[Arc<dyn ValueForm>]>;

/// Provides the command `kvstore/list`.
pub fn cell() -> Cell {
    Cell::module("kvstore-commands", "Shows the key-value store").provide(list_command)
}

/// Provides the commands `kvstore/update` and `kvstore/delete`: for tests.
pub fn write_commands() -> Cell {
    Cell::module("kvstore-write-commands", "Changes the key-value store").provide(writers)
}

fn list_command(client: Client, forms: All<Arc<dyn ValueForm>>) -> Member<CommandHandle> {
    Member(handle(Verb::List, &client, &forms.into_vec().into()))
}

fn writers(client: Client, forms: All<Arc<dyn ValueForm>>) -> Members<CommandHandle> {
    let forms = forms.into_vec().into();
    Members(
        [Verb::Update, Verb::Delete]
            .map(|verb| handle(verb, &client, &forms))
            .into(),
    )
}

fn handle(verb: Verb, client: &Client, forms: &Forms) -> CommandHandle {
    Arc::new(KvstoreCommand {
        spec: spec(verb),
        verb,
        client: client.clone(),
        forms: forms.clone(),
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
    forms: Forms,
}

impl KvstoreCommand {
    /// Converts a value, if its key has a form.
    fn convert(
        &self,
        key: &str,
        value: Bytes,
        convert: impl Fn(&dyn ValueForm, &[u8]) -> Result<Vec<u8>, Cause>,
    ) -> Result<Bytes, CommandError> {
        let Some(form) = self.forms.iter().find(|form| form.covers(key)) else {
            return Ok(value);
        };
        convert(&**form, &value).map(Bytes::from).map_err(|error| {
            let error = hive::error_chain(&*error);
            CommandError::new(format_args!("could not transcode {key:?} value: {error}"))
        })
    }
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
                let mut items = listing.map_err(|error| CommandError::chain(&error))?.items;
                if printer.shows_values {
                    for item in &mut items {
                        let value = std::mem::take(&mut item.value);
                        item.value = self.convert(&item.key, value, |form, value| form.show(value))?;
                    }
                }
                let text: Vec<u8> = items.iter().flat_map(|item| printer.print(item)).collect();
                output(cx, args.get(1).map(String::as_str), &text)
            }
            (Verb::List, _) => Err(CommandError::usage("expected a prefix and a file at most")),
            (Verb::Update, [key, file]) => {
                let content = cx
                    .read_file(file)
                    .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
                let value = content.trim().to_owned().into();
                let value = self.convert(key, value, |form, text| form.read(text))?;
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

    /// Values below `mirror/` are stored reversed; empty ones are invalid.
    struct Mirror;

    impl ValueForm for Mirror {
        fn covers(&self, key: &str) -> bool {
            key.starts_with("mirror/")
        }

        fn show(&self, value: &[u8]) -> Result<Vec<u8>, Cause> {
            if value.is_empty() {
                return Err(Arc::new(std::io::Error::other("it is empty")));
            }
            Ok(value.iter().rev().copied().collect())
        }

        fn read(&self, text: &[u8]) -> Result<Vec<u8>, Cause> {
            self.show(text)
        }
    }

    #[test]
    fn values_with_a_form_are_converted() {
        let command = KvstoreCommand {
            spec: spec(Verb::List),
            verb: Verb::List,
            client: Client::disabled(),
            forms: Forms::from([Arc::new(Mirror) as Arc<dyn ValueForm>]),
        };
        let show = |key: &str, value: &'static str| {
            let shown = command.convert(key, value.into(), |form, value| form.show(value));
            shown
                .map(|value| String::from_utf8_lossy(&value).into_owned())
                .map_err(|error| error.to_string())
        };

        assert_eq!(show("mirror/a", "abc"), Ok("cba".to_owned()));
        assert_eq!(show("other/a", "abc"), Ok("abc".to_owned()));
        assert_eq!(
            show("mirror/a", ""),
            Err("could not transcode \"mirror/a\" value: it is empty".to_owned())
        );
    }

    /// The error of a command on an empty store.
    async fn failure(line: &str) -> String {
        let options = ClientOptions::new("memory", ClientKind::Full);
        let (client, _driver) = Client::new(Arc::new(Memory::new()), options);
        let mut commands = default_commands();
        commands.extend(
            [Verb::List, Verb::Update, Verb::Delete]
                .map(|verb| named(handle(verb, &client, &Forms::from([])))),
        );
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
