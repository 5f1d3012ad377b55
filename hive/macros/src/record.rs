// SPDX-License-Identifier: Apache-2.0

//! Structs whose fields are dependencies.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Generics, Member, Result};

/// `derive(Params)`.
pub(crate) fn params(input: &DeriveInput) -> Result<TokenStream> {
    let fields = fields(input)?;
    let name = &input.ident;
    let generics = bounded(&input.generics, &fields);
    let (impl_generics, _, clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let needs = fields.iter().map(|(_, field)| {
        let ty = &field.ty;
        quote_spanned!(ty.span()=> <#ty as ::hive::Inject>::needs(needs);)
    });
    let inits = fields.iter().map(|(member, field)| {
        let ty = &field.ty;
        quote_spanned!(ty.span()=> #member: <#ty as ::hive::Inject>::inject(arguments),)
    });
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::hive::Inject for #name #type_generics #clause {
            fn needs(needs: &mut ::hive::Needs) { #(#needs)* }
            fn inject(arguments: &mut ::hive::Arguments<'_>) -> Self { Self { #(#inits)* } }
        }
    })
}

/// `derive(Value)`.
pub(crate) fn value(input: &DeriveInput) -> TokenStream {
    let name = &input.ident;
    let mut generics = input.generics.clone();
    let (_, type_generics, _) = input.generics.split_for_impl();
    if !input.generics.params.is_empty() {
        generics.make_where_clause().predicates.push(syn::parse_quote! {
            #name #type_generics: ::core::clone::Clone + ::core::marker::Send + ::core::marker::Sync + 'static
        });
    }
    let (impl_generics, _, clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::hive::Value for #name #type_generics #clause {}
    }
}

/// Adds `FieldType: Inject` for fields of generic structs. Structs without type parameters need no
/// bounds, and errors then point at the field instead of at the derive.
fn bounded(generics: &Generics, fields: &[(Member, &Field)]) -> Generics {
    let mut generics = generics.clone();
    if generics.type_params().next().is_some() {
        let clause = generics.make_where_clause();
        for (_, field) in fields {
            let ty = &field.ty;
            clause.predicates.push(syn::parse_quote!(#ty: ::hive::Inject));
        }
    }
    generics
}

fn fields(input: &DeriveInput) -> Result<Vec<(Member, &Field)>> {
    match &input.data {
        Data::Struct(data) => Ok(data.fields.members().zip(data.fields.iter()).collect()),
        Data::Enum(_) | Data::Union(_) => Err(Error::new(
            input.ident.span(),
            "`Params` can be derived for structs only",
        )),
    }
}
