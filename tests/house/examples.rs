//! The facade shows how it is used: each function, macro and trait, and each type with functions of
//! its own, has an example, which the documentation's tests compile.

use std::collections::BTreeSet;
use std::path::PathBuf;

use quote::ToTokens as _;
use syn::{Attribute, ImplItem, Item, Visibility};

use crate::source::{files, is_for_tests, short, workspace};

/// Whether readers of the documentation do not see the item, or shall not use it any more.
fn is_hidden(attributes: &[Attribute]) -> bool {
    let text = |attribute: &Attribute| attribute.meta.to_token_stream().to_string();
    attributes.iter().map(text).any(|it| it == "doc (hidden)" || it.starts_with("deprecated"))
}

fn has_example(attributes: &[Attribute]) -> bool {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    docs.filter(|doc| doc.meta.to_token_stream().to_string().contains("```")).count() >= 2
}

/// The types that have public functions among these items.
fn with_functions(items: &[Item]) -> BTreeSet<String> {
    let blocks = items.iter().filter_map(|item| match item {
        Item::Impl(block) if block.trait_.is_none() && !is_for_tests(&block.attrs) => Some(block),
        _ => None,
    });
    let is_public = |item: &ImplItem| match item {
        ImplItem::Fn(function) => {
            matches!(function.vis, Visibility::Public(_)) && !is_hidden(&function.attrs)
        }
        _ => false,
    };
    let name = |block: &syn::ItemImpl| match &*block.self_ty {
        syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    };
    blocks.filter(|block| block.items.iter().any(is_public)).filter_map(name).collect()
}

#[test]
fn the_facade_has_examples() {
    let folder = workspace().join("crates/dormouse/src");
    let public = Visibility::Public(syn::token::Pub::default());
    let (mut looked_at, mut without) = (0, Vec::new());
    let parse = |path| (syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap(), path);
    let all: Vec<(syn::File, PathBuf)> = files(&folder, "rs").into_iter().map(parse).collect();
    let types: BTreeSet<_> = all.iter().flat_map(|(file, _)| with_functions(&file.items)).collect();
    for (file, path) in &all {
        for item in &file.items {
            let (visibility, attributes, name) = match item {
                Item::Fn(item) => (&item.vis, &item.attrs, &item.sig.ident),
                Item::Trait(item) => (&item.vis, &item.attrs, &item.ident),
                Item::Struct(item) => (&item.vis, &item.attrs, &item.ident),
                Item::Enum(item) => (&item.vis, &item.attrs, &item.ident),
                Item::Macro(item) => match &item.ident {
                    Some(name) if item.attrs.iter().any(|it| it.path().is_ident("macro_export")) => {
                        (&public, &item.attrs, name)
                    }
                    _ => continue,
                },
                _ => continue,
            };
            let is_type = matches!(item, Item::Struct(_) | Item::Enum(_));
            let is_public = matches!(visibility, Visibility::Public(_));
            if !is_public || is_hidden(attributes) || is_type && !types.contains(&name.to_string()) {
                continue;
            }
            looked_at += 1;
            if !has_example(attributes) {
                without.push(format!("{} in {}", name, short(path)));
            }
        }
    }
    assert!(looked_at > 60, "{looked_at} items");
    assert!(without.is_empty(), "no example:\n{}", without.join("\n"));
}

/// The lines of a page's diffs that a change leaves or removes, each with its file.
fn unchanged(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut file = None;
    page.lines().filter_map(move |line| {
        if line.starts_with("```") {
            file = (line == "```diff").then_some("");
        } else if let Some(name) = line.strip_prefix("--- ") {
            file = file.map(|_| name);
            return None;
        }
        let is_there = line.starts_with([' ', '-']);
        file.filter(|_| is_there).map(|file| (file, &line[1..]))
    })
}

#[test]
fn diffs_of_the_first_day_apply() {
    let page = std::fs::read_to_string(workspace().join("docs/development.md")).unwrap();
    let mut checked = 0;
    for (file, line) in unchanged(&page) {
        let text =
            std::fs::read_to_string(workspace().join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert!(text.lines().any(|it| it == line), "{file} has no line {line:?}");
        checked += 1;
    }
    assert!(checked > 5, "{checked} lines");
}
