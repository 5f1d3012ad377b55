// SPDX-License-Identifier: Apache-2.0

//! Configuration structs: one flag a field, described by doc comments and `#[config(...)]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Expr, Field, Fields, Lit, LitStr, Meta, Path, Result};

/// What `#[config(...)]` of a field says.
#[derive(Default)]
struct Options {
    flag: Option<LitStr>,
    env: Option<LitStr>,
    default: Option<Expr>,
    default_with: Option<Path>,
    aliases: Vec<LitStr>,
    deprecated: Option<LitStr>,
    hidden: bool,
    secret: bool,
    skip: bool,
}

/// The parts of an implementation, one entry a field.
#[derive(Default)]
struct Parts {
    descriptions: Vec<TokenStream>,
    decodes: Vec<TokenStream>,
    inits: Vec<TokenStream>,
    renders: Vec<TokenStream>,
}

impl Parts {
    fn add(&mut self, field: &Field) -> Result<()> {
        let options = field_options(field)?;
        let ident = field.ident.as_ref().expect("named fields have identifiers");
        let ty = &field.ty;
        if options.skip {
            self.inits
                .push(quote!(#ident: ::core::default::Default::default(),));
            return Ok(());
        }
        let index = self.descriptions.len();
        self.descriptions.push(describe(field, &options));
        let default = default_of(field, &options)?;
        // The default of a path may contain the name of the program.
        let text = options.default.as_ref().map(default_text).transpose()?;
        let text = text.filter(|text| text.contains("{program}"));
        let program = text.map(|text| quote!(let default = decoder.with_program(#text);));
        self.decodes.push(quote_spanned!(ty.span()=> let #ident = {
            #program
            decoder.field::<#ty>(#index, || #default)
        };));
        self.inits.push(quote!(#ident: #ident?,));
        self.renders
            .push(quote_spanned!(ty.span()=> <#ty as ::hive::config::ConfigValue>::render(&self.#ident),));
        Ok(())
    }
}

/// `derive(Config)`.
pub(crate) fn config(input: &DeriveInput) -> Result<TokenStream> {
    let mut parts = Parts::default();
    for field in named_fields(input)? {
        parts.add(field)?;
    }
    let Parts {
        descriptions,
        decodes,
        inits,
        renders,
    } = parts;
    let validate = struct_options(&input.attrs)?.map(|path| {
        quote! {
            fn validate(&self, faults: &mut ::hive::config::Faults) { #path(self, faults) }
        }
    });
    let decoder = if decodes.is_empty() {
        quote!(_decoder)
    } else {
        quote!(decoder)
    };
    let name = &input.ident;
    let (impl_generics, type_generics, clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::hive::Config for #name #type_generics #clause {
            const FIELDS: &'static [::hive::config::Field] = &[#(#descriptions),*];
            fn decode(#decoder: &mut ::hive::config::Decoder<'_>) -> ::core::option::Option<Self> {
                #(#decodes)*
                ::core::option::Option::Some(Self { #(#inits)* })
            }
            fn render(&self) -> ::std::vec::Vec<::std::string::String> { ::std::vec![#(#renders)*] }
            #validate
        }
    })
}

/// The fields of a struct, whose names are those of flags.
fn named_fields(input: &DeriveInput) -> Result<impl Iterator<Item = &Field>> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "`Config` can be derived for structs only",
        ));
    };
    match &data.fields {
        Fields::Named(_) | Fields::Unit => Ok(data.fields.iter()),
        Fields::Unnamed(_) => Err(Error::new(
            input.ident.span(),
            "a config struct needs named fields: they name the flags",
        )),
    }
}

/// Expression of type `Result<T, String>`.
fn default_of(field: &Field, options: &Options) -> Result<TokenStream> {
    let ty = &field.ty;
    if let Some(path) = &options.default_with {
        return Ok(quote_spanned!(path.span()=> ::core::result::Result::Ok(#path())));
    }
    let Some(expr) = &options.default else {
        return Ok(quote_spanned!(ty.span()=>
            ::core::result::Result::Ok(<#ty as ::core::default::Default>::default())));
    };
    let text = default_text(expr)?;
    crate::default::check(ty, &text).map_err(|message| Error::new(expr.span(), message))?;
    let text = if text.contains("{program}") {
        quote!(&default)
    } else {
        quote!(#text)
    };
    Ok(quote_spanned!(expr.span()=> <#ty as ::hive::config::ConfigValue>::parse(#text)))
}

/// Literals are read like values of a flag, so that a default looks as users write it.
fn default_text(expr: &Expr) -> Result<String> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => return Ok(text.value()),
            Lit::Int(number) => return Ok(number.base10_digits().to_owned()),
            Lit::Float(number) => return Ok(number.base10_digits().to_owned()),
            Lit::Bool(flag) => return Ok(flag.value.to_string()),
            _ => {}
        },
        Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Neg(_)) => {
            return Ok(format!("-{}", default_text(&unary.expr)?));
        }
        _ => {}
    }
    Err(Error::new(
        expr.span(),
        "write a literal as users would (\"5m\", 10, true), or `default_with = function`",
    ))
}

fn describe(field: &Field, options: &Options) -> TokenStream {
    let ident = field.ident.as_ref().expect("named fields have identifiers");
    let ty = &field.ty;
    let rust = ident.to_string();
    let rust = rust.trim_start_matches("r#");
    let flag = options
        .flag
        .as_ref()
        .map_or_else(|| rust.replace('_', "-"), LitStr::value);
    let doc = doc(&field.attrs);
    let mut out = quote_spanned!(ty.span()=>
        ::hive::config::Field::new::<#ty>(#flag, #rust).doc(#doc));
    if let Some(env) = &options.env {
        out.extend(quote!(.env(#env)));
    }
    if !options.aliases.is_empty() {
        let aliases = &options.aliases;
        out.extend(quote!(.aliases(&[#(#aliases),*])));
    }
    if let Some(note) = &options.deprecated {
        out.extend(quote!(.deprecated(#note)));
    }
    for (set, name) in [(options.hidden, "hidden"), (options.secret, "secret")] {
        if set {
            let method = syn::Ident::new(name, ident.span());
            out.extend(quote!(.#method()));
        }
    }
    out
}

fn struct_options(attrs: &[Attribute]) -> Result<Option<Path>> {
    let mut validate = None;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("config")) {
        attr.parse_nested_meta(|meta| {
            if meta.path.is_ident("validate") {
                validate = Some(function(&meta)?);
                Ok(())
            } else {
                Err(meta.error("a config struct knows `validate = function`"))
            }
        })?;
    }
    Ok(validate)
}

/// The function that an option names. Those who know serde write it in quotes.
fn function(meta: &ParseNestedMeta<'_>) -> Result<Path> {
    let value = meta.value()?;
    if value.peek(LitStr) {
        let text: LitStr = value.parse()?;
        let message = format!("write the function without quotes: `{}`", text.value());
        return Err(Error::new(text.span(), message));
    }
    value.parse()
}

/// What stands in for the implementation where it cannot be made: the mistake is reported once, not again wherever the
/// struct is used.
pub(crate) fn stand_in(input: &DeriveInput) -> TokenStream {
    let name = &input.ident;
    let (impl_generics, type_generics, clause) = input.generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::hive::Config for #name #type_generics #clause {
            const FIELDS: &'static [::hive::config::Field] = &[];
            fn decode(_decoder: &mut ::hive::config::Decoder<'_>) -> ::core::option::Option<Self> {
                ::core::option::Option::None
            }
            fn render(&self) -> ::std::vec::Vec<::std::string::String> { ::std::vec::Vec::new() }
        }
    }
}

fn field_options(field: &Field) -> Result<Options> {
    let mut options = Options::default();
    for attr in field.attrs.iter().filter(|attr| attr.path().is_ident("config")) {
        attr.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            match name.as_str() {
                "flag" => options.flag = Some(flag_name(meta.value()?.parse()?)?),
                "env" => options.env = Some(meta.value()?.parse()?),
                "default" => options.default = Some(meta.value()?.parse()?),
                "default_with" => options.default_with = Some(function(&meta)?),
                "alias" | "deprecated_alias" => options.aliases.push(flag_name(meta.value()?.parse()?)?),
                "deprecated" => options.deprecated = Some(meta.value()?.parse()?),
                "hidden" => options.hidden = true,
                "secret" => options.secret = true,
                "skip" => options.skip = true,
                _ => {
                    return Err(meta.error(
                        "known here: flag, env, default, default_with, deprecated_alias, deprecated, hidden, secret, skip",
                    ));
                }
            }
            Ok(())
        })?;
    }
    Ok(options)
}

fn flag_name(name: LitStr) -> Result<LitStr> {
    let text = name.value();
    let good = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.' || c == '_');
    if good {
        Ok(name)
    } else {
        Err(Error::new(
            name.span(),
            "flags are lower-case words joined by dashes",
        ))
    }
}

fn doc(attrs: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attr in attrs {
        if let Meta::NameValue(meta) = &attr.meta
            && meta.path.is_ident("doc")
            && let Expr::Lit(lit) = &meta.value
            && let Lit::Str(text) = &lit.lit
        {
            lines.push(text.value().trim().to_owned());
        }
    }
    lines.join("\n").trim().to_owned()
}
