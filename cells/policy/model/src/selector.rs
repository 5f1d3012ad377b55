// SPDX-License-Identifier: Apache-2.0

//! Selectors of identities, with the canonical text that is their key in selector caches.

use std::{cmp::Ordering, collections::BTreeMap, fmt, hash::Hash, sync::Arc};

use compact_str::{CompactString, format_compact};
use ipnet::IpNet;
use serde::{Serialize, Serializer};
use skep_identity::{Label, LabelSource, Reserved};
use skep_k8s_types::slim;

use crate::{fqdn::FqdnSelector, labels::IdentityLabels, settings::PolicySettings};

/// Key of a label in selectors, with its source; `any` stands for every source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SelectorKey {
    pub source: LabelSource,
    pub key: CompactString,
}

impl SelectorKey {
    pub fn new(source: LabelSource, key: &str) -> Self {
        Self {
            source,
            key: key.into(),
        }
    }

    /// Splits `source:key`; without a source it has `default`.
    pub fn parse(text: &str, default: &LabelSource) -> Self {
        match text.split_once(':') {
            Some((source, key)) if !source.is_empty() => Self::new(source.into(), key),
            _ => Self::new(default.clone(), text),
        }
    }

    fn of<'a>(&self, labels: &'a IdentityLabels) -> Option<&'a Label> {
        labels.get(&self.source, &self.key)
    }
}

impl fmt::Display for SelectorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.key)
    }
}

/// A demand on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(SelectorKey, Box<[CompactString]>),
    NotIn(SelectorKey, Box<[CompactString]>),
    Exists(SelectorKey),
    DoesNotExist(SelectorKey),
    /// The label of its network is inside of this one.
    Inside(IpNet),
    Outside(IpNet),
    /// One of the labels is there.
    ExistsAny(Box<[SelectorKey]>),
    ExistsNone(Box<[SelectorKey]>),
    /// It is of a network of a CiliumCIDRGroup.
    InGroup,
}

impl Requirement {
    fn matches(&self, labels: &IdentityLabels) -> bool {
        let has = |values: &[CompactString], label: &Label| values.iter().any(|value| value == label.value());
        let is_inside = |net: &IpNet| labels.network().is_some_and(|own| net.contains(&own));
        match self {
            Self::In(key, values) => key.of(labels).is_some_and(|label| has(values, label)),
            Self::NotIn(key, values) => key.of(labels).is_none_or(|label| !has(values, label)),
            Self::Exists(key) => key.of(labels).is_some(),
            Self::DoesNotExist(key) => key.of(labels).is_none(),
            Self::Inside(net) => is_inside(net),
            Self::Outside(net) => !is_inside(net),
            Self::ExistsAny(keys) => keys.iter().any(|key| key.of(labels).is_some()),
            Self::ExistsNone(keys) => keys.iter().all(|key| key.of(labels).is_none()),
            Self::InGroup => labels
                .iter()
                .any(|label| *label.source() == LabelSource::CidrGroup),
        }
    }
}

/// What identities have in common that a selector can match: selectors and identities find each other by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IndexKey {
    Any,
    Namespace(CompactString),
    /// Networks inside of this one.
    Network(IpNet),
    /// A label that no pod has.
    Label(String),
}

impl IndexKey {
    /// Of a label of a source that pods do not have.
    pub(crate) fn of_label(source: &LabelSource, key: &str) -> Option<Self> {
        let is_indexed = matches!(
            source,
            LabelSource::Fqdn | LabelSource::CidrGroup | LabelSource::Reserved
        );
        is_indexed.then(|| Self::Label(format!("{source}:{key}")))
    }
}

const NAMESPACE: &str = skep_identity::Labels::NAMESPACE;

/// Selects identities. Selectors with equal texts are equal.
#[derive(Clone, Debug)]
pub struct Selector(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    text: CompactString,
    requirements: Box<[Requirement]>,
    fqdn: Option<FqdnSelector>,
    labels: Option<LabelSelector>,
}

impl Selector {
    fn new(text: CompactString, requirements: impl IntoIterator<Item = Requirement>) -> Self {
        Self(Arc::new(Parts {
            text,
            requirements: requirements.into_iter().collect(),
            fqdn: None,
            labels: None,
        }))
    }

    /// Every identity.
    pub fn wildcard() -> Self {
        LabelSelector::default().build()
    }

    pub fn is_wildcard(&self) -> bool {
        self.0.requirements.is_empty()
    }

    /// Identities with a reserved label.
    pub fn reserved(reserved: Reserved) -> Self {
        LabelSelector::default().reserved(reserved.name()).build()
    }

    /// Identities of networks inside of `net`, `text` as written, and outside of the excepted ones. A network of length 0 is
    /// the world of its family.
    pub fn cidr(text: &str, net: IpNet, except: &[IpNet], settings: &PolicySettings) -> Self {
        let mut requirements = vec![within(net, settings)];
        requirements.extend(except.iter().map(|net| without(*net, settings)));
        Self::new(
            format_compact!("cidr:{text}{}", except_text(except)),
            requirements,
        )
    }

    /// Identities of networks of a CiliumCIDRGroup.
    pub fn cidr_group(name: &str, except: &[IpNet], settings: &PolicySettings) -> Self {
        let key = SelectorKey::new(LabelSource::CidrGroup, &format_compact!("{GROUP_NAME}/{name}"));
        let text = format_compact!("{key}{}", except_text(except));
        let except = except.iter().map(|net| without(*net, settings));
        Self::new(text, std::iter::once(Requirement::Exists(key)).chain(except))
    }

    /// Identities of networks of CiliumCIDRGroups with these labels. Each network has a label `cidrgroup:<key>` and one
    /// `cidrgroup:<key>+<value>` for each value that a group has.
    pub fn cidr_groups(labels: &LabelSelector, except: &[IpNet], settings: &PolicySettings) -> Self {
        let text = format_compact!("{labels}{}", except_text(except));
        let forms = |key: &SelectorKey, values: &[CompactString]| -> Box<[SelectorKey]> {
            let form = |value: &CompactString| {
                SelectorKey::new(key.source.clone(), &format_compact!("{}+{value}", key.key))
            };
            values.iter().map(form).collect()
        };
        let requirements = labels
            .requirements()
            .into_iter()
            .map(|requirement| match requirement {
                Requirement::In(key, values) => Requirement::ExistsAny(forms(&key, &values)),
                Requirement::NotIn(key, values) => Requirement::ExistsNone(forms(&key, &values)),
                other => other,
            });
        let mut requirements: Vec<_> = requirements.collect();
        let is_positive = |requirement: &Requirement| {
            matches!(requirement, Requirement::Exists(_) | Requirement::ExistsAny(_))
        };
        if !settings.fail_open && !requirements.iter().any(is_positive) {
            requirements.push(Requirement::InGroup);
        }
        requirements.extend(except.iter().map(|net| without(*net, settings)));
        Self::new(text, requirements)
    }

    /// Identities of addresses that DNS answers had.
    pub fn fqdn(selector: &FqdnSelector) -> Self {
        let key = SelectorKey::new(LabelSource::Fqdn, selector.label_key());
        Self(Arc::new(Parts {
            text: format_compact!("{selector}"),
            requirements: [Requirement::Exists(key)].into(),
            fqdn: Some(selector.clone()),
            labels: None,
        }))
    }

    /// The names of an FQDN selector.
    pub fn names(&self) -> Option<&FqdnSelector> {
        self.0.fqdn.as_ref()
    }

    /// The label selector that it was built from.
    pub fn labels(&self) -> Option<&LabelSelector> {
        self.0.labels.as_ref()
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    pub fn matches(&self, labels: &IdentityLabels) -> bool {
        self.0
            .requirements
            .iter()
            .all(|requirement| requirement.matches(labels))
    }

    /// Where the identities are that it can match.
    pub(crate) fn index(&self) -> Vec<IndexKey> {
        let requirements = || self.0.requirements.iter();
        let network = requirements().find_map(|requirement| match requirement {
            Requirement::Inside(net) => Some(IndexKey::Network(*net)),
            _ => None,
        });
        let label = || {
            requirements().find_map(|requirement| match requirement {
                Requirement::Exists(key) | Requirement::In(key, _) => {
                    IndexKey::of_label(&key.source, &key.key)
                }
                _ => None,
            })
        };
        if let Some(key) = network.or_else(label) {
            return vec![key];
        }
        let namespaces = requirements().find_map(|requirement| match requirement {
            Requirement::In(key, values) if key.source == LabelSource::K8s && key.key == NAMESPACE => {
                Some(values)
            }
            _ => None,
        });
        let Some(namespaces) = namespaces else {
            return vec![IndexKey::Any];
        };
        let mut keys: Vec<IndexKey> = namespaces.iter().cloned().map(IndexKey::Namespace).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.text == other.0.text
    }
}

impl Eq for Selector {}

impl Hash for Selector {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl PartialOrd for Selector {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Selector {
    fn cmp(&self, other: &Self) -> Ordering {
        match Arc::ptr_eq(&self.0, &other.0) {
            true => Ordering::Equal,
            false => self.0.text.cmp(&other.0.text),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

/// Key of the label of a CiliumCIDRGroup, before its name.
pub const GROUP_NAME: &str = "io.cilium.policy.cidrgroupname";

/// The label of a network of length 0. With one family it is that of the world, and the other family's keeps its own.
fn world(net: IpNet, settings: &PolicySettings) -> SelectorKey {
    let is_other = matches!(net, IpNet::V4(_)) != settings.ipv4;
    let world = Reserved::world(net.addr(), settings.dual_stack || is_other);
    SelectorKey::new(LabelSource::Reserved, world.name())
}

fn within(net: IpNet, settings: &PolicySettings) -> Requirement {
    match net.prefix_len() {
        0 => Requirement::Exists(world(net, settings)),
        _ => Requirement::Inside(net.trunc()),
    }
}

fn without(net: IpNet, settings: &PolicySettings) -> Requirement {
    match net.prefix_len() {
        0 => Requirement::DoesNotExist(world(net, settings)),
        _ => Requirement::Outside(net.trunc()),
    }
}

fn except_text(except: &[IpNet]) -> CompactString {
    if except.is_empty() {
        return CompactString::default();
    }
    let nets: Vec<String> = except.iter().map(ToString::to_string).collect();
    format_compact!("-[{}]", nets.join(","))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl SelectorOperator {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            _ => return None,
        })
    }
}

/// A label selector whose keys have sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    labels: BTreeMap<CompactString, (SelectorKey, CompactString)>,
    expressions: Vec<(SelectorKey, SelectorOperator, Vec<CompactString>)>,
}

impl LabelSelector {
    /// A selector of an object; keys are as `key` makes them. Operators that are unknown match nothing: validate them before.
    pub fn of(selector: &slim::LabelSelector, key: impl Fn(&str) -> SelectorKey) -> Self {
        let mut made = Self::default();
        for (name, value) in selector.match_labels.iter() {
            made = made.with(key(name), value);
        }
        for expression in &selector.match_expressions {
            let operator = SelectorOperator::parse(&expression.operator).unwrap_or(SelectorOperator::In);
            let values = expression
                .values
                .iter()
                .map(|value| value.as_str().into())
                .collect();
            made.expressions.push((key(&expression.key), operator, values));
        }
        made
    }

    /// Adds a label with its value, in place of that key's.
    #[must_use]
    pub fn with(mut self, key: SelectorKey, value: &str) -> Self {
        self.labels.insert(format_compact!("{key}"), (key, value.into()));
        self
    }

    #[must_use]
    pub fn exists(mut self, key: SelectorKey) -> Self {
        self.expressions.push((key, SelectorOperator::Exists, Vec::new()));
        self
    }

    #[must_use]
    pub fn reserved(self, name: &str) -> Self {
        self.with(SelectorKey::new(LabelSource::Reserved, name), "")
    }

    /// Adds the demands of another selector.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.labels.extend(other.labels);
        self.expressions.extend(other.expressions);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.expressions.is_empty()
    }

    pub fn keys(&self) -> impl Iterator<Item = &SelectorKey> {
        let labels = self.labels.values().map(|(key, _)| key);
        labels.chain(self.expressions.iter().map(|(key, ..)| key))
    }

    /// The value that is demanded of a label.
    pub fn value_of(&self, key: &SelectorKey) -> Option<&str> {
        let (_, value) = self.labels.get(&format_compact!("{key}"))?;
        Some(value)
    }

    fn requirements(&self) -> Vec<Requirement> {
        let labels = self.labels.values().map(|(key, value)| match key.source {
            // The label of an entity has no value.
            LabelSource::Reserved if value.is_empty() => Requirement::Exists(key.clone()),
            _ => Requirement::In(key.clone(), [value.clone()].into()),
        });
        let expressions = self.expressions.iter().map(|(key, operator, values)| {
            let (key, values) = (key.clone(), values.clone().into_boxed_slice());
            match operator {
                SelectorOperator::In => Requirement::In(key, values),
                SelectorOperator::NotIn => Requirement::NotIn(key, values),
                SelectorOperator::Exists => Requirement::Exists(key),
                SelectorOperator::DoesNotExist => Requirement::DoesNotExist(key),
            }
        });
        labels.chain(expressions).collect()
    }

    pub fn build(&self) -> Selector {
        Selector(Arc::new(Parts {
            text: format_compact!("{self}"),
            requirements: self.requirements().into(),
            fqdn: None,
            labels: Some(self.clone()),
        }))
    }
}

/// The form of Kubernetes.
impl Serialize for LabelSelector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Form<'a> {
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            match_labels: BTreeMap<&'a str, &'a str>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            match_expressions: Vec<Expression<'a>>,
        }
        #[derive(Serialize)]
        struct Expression<'a> {
            key: String,
            operator: String,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            values: &'a [CompactString],
        }
        let labels = self.labels.iter();
        let expressions = self.expressions.iter().map(|(key, operator, values)| Expression {
            key: key.to_string(),
            operator: format!("{operator:?}"),
            values,
        });
        let form = Form {
            match_labels: labels.map(|(key, (_, value))| (&**key, &**value)).collect(),
            match_expressions: expressions.collect(),
        };
        form.serialize(serializer)
    }
}

/// The text of Cilium's selector caches.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("&LabelSelector{MatchLabels:map[string]string{")?;
        for (key, (_, value)) in &self.labels {
            write!(f, "{key}: {value},")?;
        }
        f.write_str("},MatchExpressions:[]LabelSelectorRequirement{")?;
        for (key, operator, values) in &self.expressions {
            let values = values.join(" ");
            write!(
                f,
                "LabelSelectorRequirement{{Key:{key},Operator:{operator:?},Values:[{values}],}},"
            )?;
        }
        f.write_str("},}")
    }
}
