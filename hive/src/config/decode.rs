// SPDX-License-Identifier: Apache-2.0

//! From the sources to typed values, with all errors at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::regular;
use super::settings::read_file_text;
use super::{Config, ConfigValue, Field, Origin, Raw, Settings, UnknownKeys, normalize};

/// Faults of a config struct, found by its `validate` function.
///
/// ```
/// let mut faults = hive::config::Faults::default();
/// faults.add("cache-size", "must not be zero");
/// assert_eq!(faults.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults {
    list: Vec<(String, String)>,
}

impl Faults {
    /// Notes that `flag` is wrong, and what would be right.
    pub fn add(&mut self, flag: impl Into<String>, message: impl Into<String>) {
        self.list.push((flag.into(), message.into()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The faults: flag and message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.list
            .iter()
            .map(|(flag, message)| (flag.as_str(), message.as_str()))
    }
}

/// A setting of a plan: its description, its name here, where its value is from.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredSetting {
    pub(crate) field: &'static Field,
    pub(crate) name: Cow<'static, str>,
    pub(crate) origin: Origin,
}

impl DeclaredSetting {
    /// Its other names here, with the prefix that its name has.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let prefix = self.name.strip_suffix(self.field.flag).unwrap_or_default();
        self.field.aliases.iter().map(move |alias| match prefix {
            "" => Cow::Borrowed(*alias),
            prefix => Cow::Owned(format!("{prefix}{alias}")),
        })
    }
}

/// One value from one source.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
    /// The key as it was written.
    pub(crate) key: String,
}

/// What is wrong with a source or value.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An argument that is no flag of the hive.
    UnknownFlag { text: String, help: Option<String> },
    /// A key of a file or directory that no cell knows.
    UnknownKey {
        key: String,
        origin: Origin,
        similar: Option<String>,
        severe: bool,
    },
    /// A value of the wrong form.
    Value {
        flag: String,
        origin: Origin,
        message: String,
        secret: bool,
    },
    /// A source that cannot be read.
    Source { what: String, message: String },
    /// An old name or setting.
    Deprecated {
        key: String,
        origin: Origin,
        instead: String,
    },
}

/// All sources, merged by key; the strongest first.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    /// By normalized key: flag > environment > directory > file.
    values: HashMap<String, Vec<Setting>>,
    /// Environment variables by name, for fields that name their own.
    env: HashMap<String, String>,
    program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) faults: Vec<Fault>,
}

impl Layers {
    /// Reads all sources. `fields` are all that the hive knows.
    pub(crate) fn read<'a>(
        settings: &Settings,
        fields: impl Iterator<Item = &'a DeclaredSetting> + Clone,
    ) -> Self {
        let mut layers = Self {
            program: settings.program.clone(),
            ..Self::default()
        };
        let idle = settings.args.is_empty()
            && settings.flags.is_empty()
            && settings.env.is_empty()
            && settings.directories.is_empty()
            && settings.files.is_empty()
            && settings.texts.is_empty();
        if idle {
            return layers;
        }
        let known: HashMap<String, &'a DeclaredSetting> = fields
            .flat_map(|field| {
                let aliases = field.aliases().map(move |alias| (normalize(&alias), field));
                std::iter::once((normalize(&field.name), field)).chain(aliases)
            })
            .collect();

        layers.read_args(settings, &known);
        for (name, value) in &settings.flags {
            layers.set_flag(name, value, &known);
        }
        layers.read_env(settings);
        for path in settings.directories.iter().rev() {
            layers.read_directory(path, settings, &known);
        }
        for (path, text) in settings.texts.iter().rev() {
            layers.read_text(path, text, settings, &known);
        }
        for path in settings.files.iter().rev() {
            match regular::read(path) {
                Ok(text) => layers.read_text(path, &text, settings, &known),
                Err(error) => {
                    layers.unreadable(format!("config file {}", path.display()), error.to_string());
                }
            }
        }
        layers
    }

    fn read_args(&mut self, settings: &Settings, known: &HashMap<String, &DeclaredSetting>) {
        let mut args = settings.args.iter();
        // A switch without a value, when the argument before was one.
        let mut switch: Option<&str> = None;
        while let Some(arg) = args.next() {
            let before = switch.take();
            if arg == "--" {
                self.arguments.extend(args.by_ref().cloned());
                break;
            }
            let Some(flag) = arg.strip_prefix("--") else {
                if arg.len() > 1 && arg.starts_with('-') {
                    let help = did_you_mean(arg.trim_start_matches('-'), known)
                        .unwrap_or_else(|| "flags have two dashes and a whole name".to_owned());
                    self.unknown_flag(arg, Some(help));
                } else if let Some(switch) =
                    before.filter(|_| !settings.positional && bool::parse(arg).is_ok())
                {
                    let help = format!("a switch takes its value after an equals sign: `--{switch}={arg}`");
                    self.unknown_flag(arg, Some(help));
                } else {
                    self.arguments.push(arg.clone());
                }
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let Some(field) = known.get(&normalize(name)) else {
                self.unknown_flag(&format!("--{name}"), did_you_mean(name, known));
                continue;
            };
            let value = match value {
                Some(value) => value,
                None if field.field.is_bool => {
                    switch = Some(name);
                    "true".to_owned()
                }
                None => match args.next() {
                    Some(value) => value.clone(),
                    None => {
                        self.faults.push(Fault::Value {
                            flag: name.to_owned(),
                            origin: Origin::Flag,
                            message: format!("needs a value: `--{name} {}`", field.field.kind),
                            secret: false,
                        });
                        continue;
                    }
                },
            };
            self.set_flag(name, &value, known);
        }
        if !settings.positional {
            for text in std::mem::take(&mut self.arguments) {
                let help = "there are no arguments but flags, which begin with two dashes".to_owned();
                self.unknown_flag(&text, Some(help));
            }
        }
    }

    fn unknown_flag(&mut self, text: &str, help: Option<String>) {
        self.faults.push(Fault::UnknownFlag {
            text: text.to_owned(),
            help,
        });
    }

    fn set_flag(&mut self, name: &str, value: &str, known: &HashMap<String, &DeclaredSetting>) {
        let key = normalize(name);
        let Some(field) = known.get(&key) else {
            self.unknown_flag(&format!("--{name}"), did_you_mean(name, known));
            return;
        };
        let earlier = self.values.entry(key).or_default();
        match earlier.first_mut() {
            // Repeated flags of lists and maps add up; of others, the last one wins.
            Some(Setting {
                raw: Raw::Text(text), ..
            }) if field.field.is_many && !text.is_empty() => {
                text.push(',');
                text.push_str(value);
            }
            Some(setting) => setting.raw = Raw::Text(value.to_owned()),
            None => earlier.push(Setting {
                raw: Raw::Text(value.to_owned()),
                origin: Origin::Flag,
                key: name.to_owned(),
            }),
        }
    }

    fn read_env(&mut self, settings: &Settings) {
        // An empty variable counts as unset.
        for (name, value) in settings.env.iter().filter(|(_, value)| !value.is_empty()) {
            let key = if settings.env_prefix.is_empty() {
                Some(name.as_str())
            } else {
                name.strip_prefix(&*settings.env_prefix)
                    .and_then(|rest| rest.strip_prefix('_'))
            };
            if let Some(key) = key
                && !key.chars().any(|c| c.is_ascii_lowercase())
            {
                self.values.entry(normalize(key)).or_default().push(Setting {
                    raw: Raw::Text(value.clone()),
                    origin: Origin::Env(name.clone()),
                    key: name.clone(),
                });
            }
            self.env.insert(name.clone(), value.clone());
        }
    }

    fn read_directory(
        &mut self,
        path: &Path,
        settings: &Settings,
        known: &HashMap<String, &DeclaredSetting>,
    ) {
        let what = || format!("config directory {}", path.display());
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => {
                self.unreadable(what(), error.to_string());
                return;
            }
        };
        let mut files = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => files.push(entry.path()),
                Err(error) => self.unreadable(what(), error.to_string()),
            }
        }
        files.sort();
        for file in files {
            // Keys of a mounted ConfigMap are links into `..data`, a link to a directory.
            let name = file.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b"..") {
                continue;
            }
            match (name.to_str(), regular::read(&file)) {
                (Some(key), Ok(text)) => {
                    let raw = Raw::Text(text.trim().to_owned());
                    self.set_key(key, raw, Origin::Directory(file.clone()), settings, known);
                }
                (None, _) => self.unreadable(
                    format!("config file {}", file.display()),
                    "its name is not UTF-8".to_owned(),
                ),
                (_, Err(error)) => {
                    self.unreadable(format!("config file {}", file.display()), error.to_string());
                }
            }
        }
    }

    fn unreadable(&mut self, what: String, message: String) {
        self.faults.push(Fault::Source { what, message });
    }

    fn read_text(
        &mut self,
        path: &Path,
        text: &str,
        settings: &Settings,
        known: &HashMap<String, &DeclaredSetting>,
    ) {
        match read_file_text(text) {
            Ok(entries) => {
                for (key, raw, line) in entries {
                    self.set_key(
                        &key,
                        raw,
                        Origin::File {
                            path: path.to_owned(),
                            line,
                        },
                        settings,
                        known,
                    );
                }
            }
            Err(message) => self.unreadable(format!("config file {}", path.display()), message),
        }
    }

    fn set_key(
        &mut self,
        key: &str,
        raw: Raw,
        origin: Origin,
        settings: &Settings,
        known: &HashMap<String, &DeclaredSetting>,
    ) {
        let normalized = normalize(key);
        if known.contains_key(&normalized) {
            self.values.entry(normalized).or_default().push(Setting {
                raw,
                origin,
                key: key.to_owned(),
            });
        } else if settings.unknown != UnknownKeys::Ignore {
            let tolerated = settings.tolerated.contains(&*normalized);
            self.faults.push(Fault::UnknownKey {
                key: key.to_owned(),
                origin,
                similar: similar(&normalized, known).filter(|_| !tolerated),
                severe: settings.unknown == UnknownKeys::Error && !tolerated,
            });
        }
    }

    /// The strongest value of a field.
    fn find(&self, field: &DeclaredSetting) -> Option<(Setting, bool)> {
        if self.values.is_empty() && self.env.is_empty() {
            return None;
        }
        let mut best: Option<(Setting, bool)> = None;
        let mut consider = |setting: &Setting, alias: bool| {
            if best
                .as_ref()
                .is_none_or(|(current, _)| rank(&setting.origin) > rank(&current.origin))
            {
                best = Some((setting.clone(), alias));
            }
        };
        if let Some(setting) = self
            .values
            .get(&normalize(&field.name))
            .and_then(|list| list.first())
        {
            consider(setting, false);
        }
        if let Some(name) = field.field.env
            && let Some(value) = self.env.get(name)
        {
            let raw = Raw::Text(value.clone());
            consider(
                &Setting {
                    raw,
                    origin: Origin::Env(name.to_owned()),
                    key: name.to_owned(),
                },
                false,
            );
        }
        for alias in field.aliases() {
            if let Some(setting) = self.values.get(&normalize(&alias)).and_then(|list| list.first()) {
                consider(setting, true);
            }
        }
        best
    }
}

fn rank(origin: &Origin) -> u8 {
    match origin {
        Origin::Default => 0,
        Origin::File { .. } => 1,
        Origin::Directory(_) => 2,
        Origin::Env(_) => 3,
        Origin::Flag => 4,
        Origin::Program | Origin::Override => 5,
    }
}

/// The known key that was probably meant.
fn similar(key: &str, known: &HashMap<String, &DeclaredSetting>) -> Option<String> {
    crate::similar::closest(
        key,
        known
            .values()
            .filter(|field| !field.field.hidden)
            .map(|field| &*field.name),
    )
}

/// Help for a flag that is not known.
fn did_you_mean(name: &str, known: &HashMap<String, &DeclaredSetting>) -> Option<String> {
    similar(&normalize(name), known).map(|similar| format!("did you mean `--{similar}`?"))
}

/// Reads the fields of one config struct.
///
/// ```
/// use hive::Config;
/// # #[derive(Clone, Config)] struct Size { /// Size.
/// # size: u8 }
/// // The derive macro reads every field through a decoder; so does a struct that contains another one.
/// #[derive(Clone)]
/// struct Wrapped(Size);
///
/// impl Config for Wrapped {
///     const FIELDS: &'static [hive::config::Field] = Size::FIELDS;
///     fn decode(decoder: &mut hive::config::Decoder<'_>) -> Option<Self> { Size::decode(decoder).map(Self) }
///     fn render(&self) -> Vec<String> { self.0.render() }
/// }
/// assert_eq!(Wrapped::defaults().unwrap().0.size, 0);
/// ```
pub struct Decoder<'a> {
    layers: &'a Layers,
    settings: &'a mut [DeclaredSetting],
    pub(crate) faults: Vec<Fault>,
}

impl<'a> Decoder<'a> {
    /// Notes with each setting where its value is from.
    pub(crate) fn new(layers: &'a Layers, settings: &'a mut [DeclaredSetting]) -> Self {
        Self {
            layers,
            settings,
            faults: Vec::new(),
        }
    }

    /// The text of a default, with the name of the program in place of `{program}`.
    #[must_use]
    pub fn with_program(&self, text: &str) -> String {
        let program = match &*self.layers.program {
            "" => "hive",
            program => program,
        };
        text.replace("{program}", program)
    }

    /// Reads field number `index`; `None` if its value is bad, which is noted.
    pub fn field<T: ConfigValue>(
        &mut self,
        index: usize,
        default: impl FnOnce() -> Result<T, String>,
    ) -> Option<T> {
        let field = &mut self.settings[index];
        // Read even where it does not count: a bad one is a mistake that any test of a plan shall find.
        let default = default().map_err(|message| {
            self.faults.push(Fault::Value {
                flag: field.name.to_string(),
                origin: Origin::Default,
                message,
                secret: field.field.secret,
            });
        });
        let Some((setting, alias)) = self.layers.find(field) else {
            return default.ok();
        };
        field.origin = setting.origin.clone();
        if alias {
            self.faults.push(Fault::Deprecated {
                key: setting.key.clone(),
                origin: setting.origin.clone(),
                instead: format!("use `{}`", field.name),
            });
        } else if let Some(note) = field.field.deprecated {
            self.faults.push(Fault::Deprecated {
                key: setting.key.clone(),
                origin: setting.origin.clone(),
                instead: note.to_owned(),
            });
        }
        match T::from_raw(&setting.raw) {
            Ok(value) => Some(value),
            Err(message) => {
                self.faults.push(Fault::Value {
                    flag: field.name.to_string(),
                    origin: setting.origin,
                    message,
                    secret: field.field.secret,
                });
                None
            }
        }
    }
}

pub(crate) fn defaults<C: Config>() -> Result<C, String> {
    let layers = Layers::default();
    let mut settings: Vec<DeclaredSetting> = C::FIELDS
        .iter()
        .map(|field| DeclaredSetting {
            field,
            name: Cow::Borrowed(field.flag),
            origin: Origin::Default,
        })
        .collect();
    let mut decoder = Decoder::new(&layers, &mut settings);
    let value = C::decode(&mut decoder);
    value.ok_or_else(|| match decoder.faults.pop() {
        Some(Fault::Value { flag, message, .. }) => format!("default of `{flag}`: {message}"),
        _ => "a default cannot be read".to_owned(),
    })
}
