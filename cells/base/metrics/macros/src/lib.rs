// SPDX-License-Identifier: Apache-2.0

//! Derive macro of the `skep-base-metrics` crate, which re-exports and documents it.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, Lit, LitStr, Meta, Result, parse_macro_input,
};

/// Makes a struct a set of metrics: one metric a field. See `skep_base_metrics::MetricSet`.
#[proc_macro_derive(Metrics, attributes(metrics, metric))]
pub fn metrics(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// What `#[metrics(...)]` of the struct or `#[metric(...)]` of a field says.
#[derive(Default)]
struct Options {
    /// Prefix of a struct, name of a field.
    name: Option<LitStr>,
    labels: Option<Expr>,
    buckets: Option<Expr>,
    disabled: bool,
    unprefixed: bool,
}

fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "`Metrics` can be derived for structs only",
        ));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            input.ident.span(),
            "a set of metrics needs named fields: they name the metrics",
        ));
    };
    let set = struct_options(&input.attrs)?;
    let name = &input.ident;
    let fields = fields
        .named
        .iter()
        .map(|field| Ok((field, make(field, &set)?)))
        .collect::<Result<Vec<_>>>()?;
    let idents: Vec<_> = fields.iter().map(|(field, _)| &field.ident).collect();
    let makes = fields.iter().map(|(_, make)| make);
    Ok(quote! {
        #[automatically_derived]
        impl ::skep_base_metrics::MetricSet for #name {
            fn metrics(&self) -> ::std::vec::Vec<::skep_base_metrics::MetricHandle> {
                ::std::vec![#(::std::sync::Arc::new(::core::clone::Clone::clone(&self.#idents))),*]
            }
        }

        ::skep_base_metrics::declare!(#name);

        #[automatically_derived]
        impl ::core::default::Default for #name {
            fn default() -> Self {
                Self { #(#idents: #makes),* }
            }
        }
    })
}

/// The expression that makes the metric of a field.
fn make(field: &Field, set: &Options) -> Result<TokenStream> {
    let ident = field.ident.as_ref().expect("named fields have identifiers");
    let options = field_options(field)?;
    let own = options
        .name
        .map_or_else(|| ident.to_string(), |name| name.value());
    let full = match &set.name {
        Some(prefix) => format!("{}_{own}", prefix.value()),
        None => own,
    };
    let help = help(&field.attrs).ok_or_else(|| {
        Error::new(
            ident.span(),
            "a metric needs a doc comment, which is its help text",
        )
    })?;
    let constructor = if set.unprefixed {
        quote!(unprefixed)
    } else {
        quote!(new)
    };
    let mut opts = quote!(::skep_base_metrics::Opts::#constructor(#full, #help));
    if set.disabled || options.disabled {
        opts.extend(quote!(.disabled()));
    }
    let ty = &field.ty;
    let labels = options.labels.as_ref().or(set.labels.as_ref());
    let labels = labels.map(|labels| quote!(, #labels));
    Ok(match &options.buckets {
        Some(buckets) => quote_spanned!(ty.span()=> <#ty>::with_buckets(#opts #labels, #buckets)),
        None => quote_spanned!(ty.span()=> <#ty>::new(#opts #labels)),
    })
}

fn struct_options(attributes: &[Attribute]) -> Result<Options> {
    let mut options = Options::default();
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("metrics"))
    {
        attribute.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string);
            match name.as_deref() {
                Some("prefix") => options.name = Some(meta.value()?.parse()?),
                Some("labels") => options.labels = Some(meta.value()?.parse()?),
                Some("disabled") => options.disabled = true,
                Some("unprefixed") => options.unprefixed = true,
                _ => return Err(meta.error("known here: prefix, labels, disabled, unprefixed")),
            }
            Ok(())
        })?;
    }
    Ok(options)
}

fn field_options(field: &Field) -> Result<Options> {
    let mut options = Options::default();
    for attribute in field
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("metric"))
    {
        attribute.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string);
            match name.as_deref() {
                Some("name") => options.name = Some(meta.value()?.parse()?),
                Some("labels") => options.labels = Some(meta.value()?.parse()?),
                Some("buckets") => options.buckets = Some(meta.value()?.parse()?),
                Some("disabled") => options.disabled = true,
                _ => return Err(meta.error("known here: name, labels, buckets, disabled")),
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// The doc comment as one line, without the full stop at its end.
fn help(attributes: &[Attribute]) -> Option<String> {
    let mut lines = Vec::new();
    for attribute in attributes {
        if let Meta::NameValue(meta) = &attribute.meta
            && meta.path.is_ident("doc")
            && let Expr::Lit(lit) = &meta.value
            && let Lit::Str(text) = &lit.lit
        {
            lines.push(text.value().trim().to_owned());
        }
    }
    let text = lines.join(" ").trim().to_owned();
    let text = text.strip_suffix('.').unwrap_or(&text);
    (!text.is_empty()).then(|| text.to_owned())
}
