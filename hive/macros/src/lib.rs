// SPDX-License-Identifier: Apache-2.0

//! Derive macros of the `hive` and `statedb` crates, which re-export and document them.

mod config;
mod default;
mod record;
mod table;

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

/// Makes a struct a result of constructors: every field is supplied. See `hive::Supplies`.
#[proc_macro_derive(Supplies)]
pub fn supplies(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    record::supplies(&input)
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

/// Makes a struct a row of a table: one index a marked field. See `statedb::Define`.
#[proc_macro_derive(Table, attributes(table, index))]
pub fn table(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    table::table(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
