//! The attribute macro of dormouse.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Ident, ItemFn, LitStr, Token, parenthesized, parse_macro_input};

/// The attribute's parentheses: a name, fields, both or neither.
#[derive(Default)]
struct Arguments {
    name: Option<LitStr>,
    fields: proc_macro2::TokenStream,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        if input.peek(LitStr) {
            arguments.name = Some(input.parse()?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if !input.is_empty() {
            let word: Ident = input.parse()?;
            if word != "fields" {
                return Err(syn::Error::new(
                    word.span(),
                    "expected `fields(…)` after the name, as in `#[probed(\"brew\", fields(cups, ?order))]`",
                ));
            }
            let content;
            parenthesized!(content in input);
            arguments.fields = content.parse()?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if input.is_empty() { Ok(arguments) } else { Err(input.error("nothing may follow `fields(…)`")) }
    }
}

/// Makes a function a probe: a record when it begins, with fields, and one when it ends, with the
/// time in between.
///
/// `#[probed]` names the probe after module and function, `#[probed("brew")]` gives it that name;
/// `#[probed("brew", fields(cups, order = ?order))]` records fields as `dormouse::probe!` does. On
/// an `async fn` the time is from the first poll to the end, including waits. The end is recorded
/// only if the probe was awake at the beginning.
///
/// # Cost
///
/// Asleep one instruction at the beginning, and a test of a value on the stack at the end.
#[proc_macro_attribute]
pub fn probed(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let Arguments { name, fields } = parse_macro_input!(arguments as Arguments);
    let ItemFn { attrs, vis, sig, block, .. } = parse_macro_input!(item as ItemFn);
    if let Some(constness) = sig.constness {
        return syn::Error::new(constness.span(), "a const fn cannot be probed: it may run at compile time")
            .to_compile_error()
            .into();
    }
    let function = sig.ident.to_string();
    let name = name.map_or_else(
        || quote!(::core::concat!(::core::module_path!(), "::", #function)),
        |name| quote!(#name),
    );
    let scope = quote_spanned! { sig.ident.span() =>
        let _dormouse_scope: ::core::option::Option<::dormouse::macros::ProbedScope> =
            ::dormouse::__dormouse_scope!(#name, #fields);
    };
    quote! {
        #(#attrs)*
        #vis #sig {
            #scope
            #block
        }
    }
    .into()
}
