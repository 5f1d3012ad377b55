// SPDX-License-Identifier: Apache-2.0

//! Derive macros of the crate `hive`, which re-exports and documents them.

mod config;
mod default;
mod record;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct a parameter of constructors: every field is a dependency. See `hive::Params`.
#[proc_macro_derive(Params)]
pub fn params(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    record::params(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// Makes a cheaply cloned handle a value of the graph by itself, without `Arc`. See `hive::Value`.
#[proc_macro_derive(Value)]
pub fn value(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    record::value(&input).into()
}

/// Makes a struct the configuration of a cell: one flag a field. See `hive::Config`.
#[proc_macro_derive(Config, attributes(config))]
pub fn config(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    config::config(&input)
        .unwrap_or_else(|error| {
            let mut tokens = error.to_compile_error();
            tokens.extend(config::stand_in(&input));
            tokens
        })
        .into()
}
