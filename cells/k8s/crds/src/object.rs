// SPDX-License-Identifier: Apache-2.0

//! How the types of this crate are written down: what every one of them derives.

pub use skep_k8s_types::slim::Metadata;

/// Defines structs of the API: fields that may be absent are `Option`s, absent ones are not written.
///
/// `object!` has fields in camel case; `object!("kebab-case", …)` in another one.
macro_rules! object {
    ($case:literal, $($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })*) => {$(
        #[serde_with::skip_serializing_none]
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = $case)]
        $(#[$meta])*
        pub struct $name { $($body)* }
    )*};
    ($($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })*) => {
        $crate::object::object! { "camelCase", $($(#[$meta])* pub struct $name { $($body)* })* }
    };
}

/// Defines closed sets of words. `Name { Variant = "word" }`; the first variant is the default of Rust values.
macro_rules! words {
    ($($(#[$meta:meta])* pub enum $name:ident { $(#[$first_meta:meta])* $first:ident = $first_word:literal,
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)* })*) => {$(
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        $(#[$meta])*
        pub enum $name {
            $(#[$first_meta])*
            #[default]
            #[serde(rename = $first_word)]
            $first,
            $(
                $(#[$variant_meta])*
                #[serde(rename = $word)]
                $variant,
            )*
        }
    )*};
}

/// Defines the kind itself, with metadata, and what it is called on the wire.
macro_rules! kind {
    ($(#[$meta:meta])* $name:ident, $group:literal, $version:literal, $plural:literal, $namespaced:literal,
        { $($body:tt)* }) => {
        $crate::object::object! {
            $(#[$meta])*
            pub struct $name {
                /// Name, labels and annotations.
                #[serde(default)]
                #[schemars(with = "crate::schema::AnyObject")]
                pub metadata: $crate::object::Metadata,
                $($body)*
            }
        }

        impl skep_k8s_types::Resource for $name {
            fn kind() -> skep_k8s_types::Kind {
                const { skep_k8s_types::Kind::new($group, $version, stringify!($name), $plural, $namespaced) }
            }

            fn metadata(&self) -> &$crate::object::Metadata {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::object::Metadata {
                &mut self.metadata
            }

            // Whoever uses these types writes the objects back: nothing is dropped.
            fn compact(&mut self) {}
        }
    };
}

pub(crate) use {kind, object, words};
