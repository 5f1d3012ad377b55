// SPDX-License-Identifier: Apache-2.0

//! Rows of tables: one index a marked field.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Data, DeriveInput, Error, Field, Fields, GenericArgument, LitStr, PathArguments, Result, Type,
    spanned::Spanned,
};

/// What `#[index(...)]` of a field says.
#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    is_primary: bool,
    is_unique: bool,
    has_each: bool,
}

/// `derive(Table)`.
pub(crate) fn table(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "`Table` can be derived for structs only",
        ));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            input.ident.span(),
            "a row needs named fields: they name the indexes",
        ));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(
            input.generics.span(),
            "`Table` can be derived for structs without parameters only",
        ));
    }
    let table = table_name(input)?;

    let (ident, visibility) = (&input.ident, &input.vis);
    let mut indexes = Vec::new();
    let mut primary = None;
    let mut secondary = Vec::new();
    for field in &fields.named {
        let Some(options) = options(field)? else { continue };
        let name = field.ident.as_ref().expect("named fields have identifiers");
        let constant = format_ident!("BY_{}", name.to_string().trim_start_matches("r#").to_uppercase());
        indexes.push(index(ident, visibility, &constant, field, &options)?);
        if options.is_primary {
            if primary.replace(constant).is_some() {
                return Err(Error::new(name.span(), "a table has one primary index"));
            }
        } else {
            secondary.push(constant);
        }
    }
    let Some(primary) = primary else {
        return Err(Error::new(
            ident.span(),
            "mark the field that identifies a row with `#[index(primary)]`",
        ));
    };

    Ok(quote! {
        impl #ident {
            #(#indexes)*
        }

        #[automatically_derived]
        impl ::statedb::Define for #ident {
            const TABLE: &'static str = #table;

            fn define() -> ::statedb::PrimaryBuilder<Self> {
                ::statedb::RwTable::<Self>::builder(Self::TABLE)
                    .primary(Self::#primary)
                    #(.index(Self::#secondary))*
            }
        }
    })
}

/// The name in `#[table(name = "...")]`.
fn table_name(input: &DeriveInput) -> Result<LitStr> {
    let mut name = None;
    for attribute in input
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("table"))
    {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("expected `name = \"...\"`"));
            }
            name = Some(meta.value()?.parse::<LitStr>()?);
            Ok(())
        })?;
    }
    let Some(name) = name else {
        return Err(Error::new(
            input.ident.span(),
            "name the table: `#[table(name = \"...\")]`",
        ));
    };
    let text = name.value();
    let is_valid = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.len() <= 31
        && text
            .chars()
            .all(|other| other.is_ascii_lowercase() || other.is_ascii_digit() || matches!(other, '-' | '_'));
    match is_valid {
        true => Ok(name),
        false => Err(Error::new(
            name.span(),
            "table names match `[a-z][a-z0-9_-]{0,30}`",
        )),
    }
}

/// What `#[index]` of a field says, if it has one.
fn options(field: &Field) -> Result<Option<Options>> {
    let mut found = None;
    for attribute in field
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("index"))
    {
        let options: &mut Options = found.get_or_insert_default();
        if let syn::Meta::Path(_) = attribute.meta {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("name") {
                let name: LitStr = meta.value()?.parse()?;
                if name.value().is_empty() || name.value().starts_with("__") {
                    return Err(Error::new(
                        name.span(),
                        "names of indexes are not empty and do not start with `__`",
                    ));
                }
                options.name = Some(name);
                return Ok(());
            }
            let flag = match &meta.path {
                path if path.is_ident("primary") => &mut options.is_primary,
                path if path.is_ident("unique") => &mut options.is_unique,
                path if path.is_ident("each") => &mut options.has_each,
                _ => return Err(meta.error("expected `primary`, `unique`, `each` or `name = \"...\"`")),
            };
            *flag = true;
            Ok(())
        })?;
        if options.is_primary && options.has_each {
            return Err(Error::new(attribute.span(), "a primary index has one key a row"));
        }
    }
    Ok(found)
}

/// The constant of one index.
fn index(
    row: &syn::Ident,
    visibility: &syn::Visibility,
    constant: &syn::Ident,
    field: &Field,
    options: &Options,
) -> Result<TokenStream> {
    let ident = field.ident.as_ref().expect("named fields have identifiers");
    let field_name = ident.to_string();
    let field_name = field_name.trim_start_matches("r#");
    let name = options
        .name
        .as_ref()
        .map_or_else(|| field_name.replace('_', "-"), LitStr::value);
    let doc = format!("Finds rows by `{field_name}`.");
    let make = if options.is_unique || options.is_primary {
        quote!(unique)
    } else {
        quote!(new)
    };
    let (key, keys) = if options.has_each {
        let Some(element) = element(&field.ty) else {
            return Err(Error::new(
                field.ty.span(),
                "`each` needs a collection such as `Vec<T>`, or `Option<T>`",
            ));
        };
        (
            key_type(element),
            quote!((&row.#ident).into_iter().for_each(|key| keys.add(key))),
        )
    } else {
        (key_type(&field.ty), quote!(keys.add(&row.#ident)))
    };
    Ok(quote_spanned! {field.ty.span()=>
        #[doc = #doc]
        #visibility const #constant: ::statedb::Index<#row, #key> =
            ::statedb::Index::#make(#name, |row, keys| #keys);
    })
}

/// Texts are looked for as `str`, everything else as it is.
fn key_type(field: &Type) -> TokenStream {
    match last_segment(field) {
        Some(segment) if segment.ident == "String" || segment.ident == "CompactString" => quote!(str),
        _ => quote!(#field),
    }
}

/// `T` of `Vec<T>` and the like.
fn element(collection: &Type) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &last_segment(collection)?.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(element) => Some(element),
        _ => None,
    })
}

fn last_segment(path: &Type) -> Option<&syn::PathSegment> {
    match path {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[track_caller]
    fn refused(input: DeriveInput, message: &str) {
        assert_eq!(table(&input).unwrap_err().to_string(), message);
    }

    #[test]
    fn mistakes_are_named() {
        refused(
            parse_quote!(
                struct Row {
                    #[index(primary)]
                    id: u64,
                }
            ),
            "name the table: `#[table(name = \"...\")]`",
        );
        refused(
            parse_quote!(
                #[table(name = "Rows")]
                struct Row {
                    #[index(primary)]
                    id: u64,
                }
            ),
            "table names match `[a-z][a-z0-9_-]{0,30}`",
        );
        refused(
            parse_quote!(
                #[table(title = "rows")]
                struct Row {
                    #[index(primary)]
                    id: u64,
                }
            ),
            "expected `name = \"...\"`",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(unique)]
                    id: u64,
                }
            ),
            "mark the field that identifies a row with `#[index(primary)]`",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(primary)]
                    a: u64,
                    #[index(primary)]
                    b: u64,
                }
            ),
            "a table has one primary index",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(primary, each)]
                    ids: Vec<u64>,
                }
            ),
            "a primary index has one key a row",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(primary)]
                    id: u64,
                    #[index(each)]
                    other: u64,
                }
            ),
            "`each` needs a collection such as `Vec<T>`, or `Option<T>`",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(first)]
                    id: u64,
                }
            ),
            "expected `primary`, `unique`, `each` or `name = \"...\"`",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row {
                    #[index(primary, name = "")]
                    id: u64,
                }
            ),
            "names of indexes are not empty and do not start with `__`",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row(u64);
            ),
            "a row needs named fields: they name the indexes",
        );
        refused(
            parse_quote!(
                #[table(name = "rows")]
                struct Row<T> {
                    #[index(primary)]
                    id: T,
                }
            ),
            "`Table` can be derived for structs without parameters only",
        );
        refused(
            parse_quote!(
                enum Row {}
            ),
            "`Table` can be derived for structs only",
        );
    }
}
