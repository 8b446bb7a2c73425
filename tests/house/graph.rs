//! Inside a crate, the modules that share a parent have an order: each uses those of them that come
//! before it, with everything that lies below them. A module and its own parts may use one another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, UseTree};

use crate::source::{crates, is_for_tests, short};

type Name = Vec<String>;

/// A module: its names, and the paths that its code mentions.
#[derive(Default)]
struct Module {
    file: String,
    /// Defined here.
    items: BTreeSet<String>,
    /// Brought in by `use`: the name here, and the path.
    imports: BTreeMap<String, Name>,
    /// `use path::*`.
    globs: Vec<Name>,
    paths: BTreeSet<Name>,
}

type Modules = BTreeMap<Name, Module>;

/// Where the modules that `file` declares have their files.
fn directory_of(file: &Path) -> PathBuf {
    let parent = file.parent().unwrap();
    match file.file_stem().unwrap().to_str().unwrap() {
        "lib" | "main" | "mod" => parent.to_owned(),
        stem => parent.join(stem),
    }
}

fn read(file: &Path, directory: &Path, name: &Name, modules: &mut Modules) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    modules.entry(name.clone()).or_default().file = short(file);
    take(parsed.items, file, directory, name, modules);
}

fn take(items: Vec<Item>, file: &Path, directory: &Path, name: &Name, modules: &mut Modules) {
    for item in items {
        let attributes: &[syn::Attribute] = match &item {
            Item::Const(it) => &it.attrs,
            Item::Enum(it) => &it.attrs,
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Macro(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Static(it) => &it.attrs,
            Item::Struct(it) => &it.attrs,
            Item::Trait(it) => &it.attrs,
            Item::Type(it) => &it.attrs,
            Item::Union(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            _ => &[],
        };
        if is_for_tests(attributes) {
            continue;
        }
        let here = modules.entry(name.clone()).or_default();
        match &item {
            Item::Const(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Enum(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Fn(it) => drop(here.items.insert(it.sig.ident.to_string())),
            Item::Macro(it) => drop(it.ident.as_ref().map(|ident| here.items.insert(ident.to_string()))),
            Item::Static(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Struct(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Trait(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Type(it) => drop(here.items.insert(it.ident.to_string())),
            Item::Union(it) => drop(here.items.insert(it.ident.to_string())),
            _ => {}
        }
        match item {
            Item::Use(it) => imports(&it.tree, &mut Vec::new(), here),
            Item::Mod(it) => {
                let child: Name = name.iter().cloned().chain([it.ident.to_string()]).collect();
                let below = directory.join(it.ident.to_string());
                if let Some((_, items)) = it.content {
                    modules.entry(child.clone()).or_default().file = short(file);
                    take(items, file, &below, &child, modules);
                } else if let Some(file) = file_of(&it.attrs, file, directory, &below) {
                    let directory = if file.ends_with("mod.rs") || !it.attrs.iter().any(is_path) {
                        below
                    } else {
                        directory_of(&file)
                    };
                    read(&file, &directory, &child, modules);
                }
            }
            Item::Impl(mut it) => {
                it.items.retain(|member| match member {
                    syn::ImplItem::Fn(member) => !is_for_tests(&member.attrs),
                    _ => true,
                });
                mentions(it.into_token_stream(), here);
            }
            item => mentions(item.into_token_stream(), here),
        }
    }
}

fn is_path(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("path")
}

fn file_of(attributes: &[syn::Attribute], file: &Path, directory: &Path, below: &Path) -> Option<PathBuf> {
    let named = attributes.iter().find(|attribute| is_path(attribute)).and_then(|attribute| {
        let syn::Meta::NameValue(value) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &value.value else { return None };
        Some(file.parent()?.join(path.value()))
    });
    let stem = below.file_name().unwrap().to_str().unwrap();
    let candidates = [directory.join(format!("{stem}.rs")), below.join("mod.rs")];
    named.or_else(|| candidates.into_iter().find(|candidate| candidate.exists()))
}

fn imports(tree: &UseTree, prefix: &mut Name, here: &mut Module) {
    match tree {
        UseTree::Path(it) => {
            prefix.push(it.ident.to_string());
            imports(&it.tree, prefix, here);
            prefix.pop();
        }
        UseTree::Group(it) => it.items.iter().for_each(|tree| imports(tree, prefix, here)),
        UseTree::Glob(_) => {
            here.paths.insert(prefix.clone());
            here.globs.push(prefix.clone());
        }
        UseTree::Name(it) if it.ident == "self" => {
            let name = prefix.last().cloned().unwrap_or_default();
            import(name, prefix.clone(), here);
        }
        UseTree::Name(it) => {
            let name = it.ident.to_string();
            import(name.clone(), prefix.iter().cloned().chain([name]).collect(), here);
        }
        UseTree::Rename(it) => {
            let mut path = prefix.clone();
            if it.ident != "self" {
                path.push(it.ident.to_string());
            }
            import(it.rename.to_string(), path, here);
        }
    }
}

fn import(name: String, path: Name, here: &mut Module) {
    here.paths.insert(path.clone());
    here.imports.insert(name, path);
}

/// Takes every `a::b::c` out of the tokens, in macros too.
fn mentions(tokens: TokenStream, here: &mut Module) {
    let mut path: Name = Vec::new();
    let (mut colons, mut is_hosts) = (0, false);
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if is_hosts && ident == "crate" => {
                end(&mut path, here);
                path.push("$crate".to_owned());
                is_hosts = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                path.push(ident.to_string());
                colons = 0;
            }
            other => {
                end(&mut path, here);
                colons = 0;
                is_hosts = matches!(&other, TokenTree::Punct(punct) if punct.as_char() == '$');
                match other {
                    TokenTree::Ident(ident) => path.push(ident.to_string()),
                    TokenTree::Group(group) => mentions(group.stream(), here),
                    _ => {}
                }
            }
        }
    }
    end(&mut path, here);
}

fn end(path: &mut Name, here: &mut Module) {
    if path.len() > 1 {
        here.paths.insert(path.clone());
    }
    path.clear();
}

/// The module that defines what `path` names as `from` sees it; `None` for what lies outside of the
/// crate.
fn resolve(modules: &Modules, from: &Name, path: &[String], depth: usize) -> Option<Name> {
    if depth > 16 {
        return None;
    }
    let mut at = from.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" | "$crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|first| first == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        first => {
            let module = &modules[from];
            let child: Name = from.iter().cloned().chain([first.to_owned()]).collect();
            if let Some(target) = module.imports.get(first).filter(|target| target[0] != first) {
                let target: Vec<_> = target.iter().chain(&path[1..]).cloned().collect();
                return resolve(modules, from, &target, depth + 1);
            }
            if !modules.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some(next) = rest.first() {
        let child: Name = at.iter().cloned().chain([next.clone()]).collect();
        if modules.contains_key(&child) {
            (at, rest) = (child, &rest[1..]);
            continue;
        }
        let module = &modules[&at];
        if module.items.contains(next) {
            return Some(at);
        }
        if let Some(target) = module.imports.get(next) {
            let target: Vec<_> = target.iter().chain(&rest[1..]).cloned().collect();
            return resolve(modules, &at, &target, depth + 1).or(Some(at));
        }
        let through = module.globs.iter().find_map(|glob| {
            let origin = resolve(modules, &at, glob, depth + 1)?;
            (modules.get(&origin)?.items.contains(next)).then_some(origin)
        });
        return through.or(Some(at));
    }
    Some(at)
}

/// The arrows between the children of each module, with an example of each.
type Arrows = BTreeMap<Name, BTreeMap<(String, String), String>>;

fn arrows(modules: &Modules) -> Arrows {
    let mut all = Arrows::new();
    for (name, module) in modules {
        for path in &module.paths {
            let Some(target) = resolve(modules, name, path, 0) else { continue };
            let common = name.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if common == name.len() || common == target.len() {
                continue;
            }
            let arrow = (name[common].clone(), target[common].clone());
            let example = format!("{}: {}", module.file, path.join("::"));
            all.entry(name[..common].to_vec()).or_default().entry(arrow).or_insert(example);
        }
    }
    all
}

/// The arrows that lie on a circle.
fn circles(arrows: &BTreeMap<(String, String), String>) -> Vec<String> {
    let reaches = |from: &String, to: &String| {
        let mut seen = BTreeSet::from([from]);
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            for (_, next) in arrows.keys().filter(|(one, _)| one == at) {
                if next == to {
                    return true;
                }
                if seen.insert(next) {
                    todo.push(next);
                }
            }
        }
        false
    };
    let on_circle = arrows.iter().filter(|((one, other), _)| reaches(other, one));
    on_circle.map(|((one, other), example)| format!("{one} -> {other}   ({example})")).collect()
}

fn modules_of(root: &Path) -> Modules {
    let mut modules = Modules::new();
    read(root, root.parent().unwrap(), &Vec::new(), &mut modules);
    modules
}

#[test]
fn siblings_depend_one_way() {
    let mut found = Vec::new();
    for one in crates() {
        let modules = modules_of(&one.root);
        assert!(modules.len() > 1 || ["macros", "capi", "testkit"].contains(&&*one.name), "{}", one.name);
        for (parent, arrows) in arrows(&modules) {
            let circle = circles(&arrows);
            if !circle.is_empty() {
                let parent = [std::slice::from_ref(&one.name), &*parent].concat().join("::");
                found.push(format!("in {parent}:\n    {}", circle.join("\n    ")));
            }
        }
    }
    assert!(found.is_empty(), "modules that use one another in a circle:\n{}", found.join("\n"));
}

/// The floors of the facade, from the ground up. `answers` and `macros` are names for others.
const FLOORS: [&[&str]; 5] = [
    &["core"],
    &["agent", "lookout", "web"],
    &["features"],
    &["environment"],
    &["adapt", "answers", "doctor", "init", "macros"],
];

#[test]
fn modules_of_the_facade_use_lower_floors() {
    let Some(facade) = crates().into_iter().find(|one| one.name == "dormouse") else { return };
    let modules = modules_of(&facade.root);
    let floor = |module: &str| {
        let at = FLOORS.iter().position(|floor| floor.contains(&module));
        at.unwrap_or_else(|| panic!("{module} has no floor"))
    };
    let all = arrows(&modules);
    let arrows = &all[&Vec::new()];
    assert!(arrows.len() > 10, "{arrows:#?}");
    // `macros` has the names that macros expand to in their hosts.
    let is_up = |(one, other): &(String, String)| floor(one) <= floor(other) && other != "macros";
    let up: Vec<_> = arrows.iter().filter(|(arrow, _)| is_up(arrow)).collect();
    assert!(up.is_empty(), "{up:#?}");
    // A path through the root hides where it leads. Macros have no other.
    let is_hidden = |path: &Name| {
        path[0] == "crate" && !modules.contains_key(&path[1..2]) && !path[1].starts_with("__dormouse")
    };
    for (name, module) in modules.iter().filter(|(name, _)| !name.is_empty()) {
        let hidden: Vec<_> = module.paths.iter().filter(|path| is_hidden(path)).collect();
        assert!(hidden.is_empty(), "{} uses the root's own names: {hidden:?}", name.join("::"));
    }
}

#[test]
fn commands_leave_one_another_alone() {
    let Some(cli) = crates().into_iter().find(|one| one.name == "cli") else { return };
    let arrows = arrows(&modules_of(&cli.root));
    let between = arrows.get(&vec!["cmd".to_owned()]).cloned().unwrap_or_default();
    assert!(between.is_empty(), "{between:#?}");
}

#[test]
fn a_circle_is_found_with_its_arrows() {
    let arrow = |one: &str, other: &str| ((one.to_owned(), other.to_owned()), "here".to_owned());
    let arrows = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "a"), arrow("a", "d")]);
    assert_eq!(circles(&arrows).len(), 3);
    let arrows = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("a", "c")]);
    assert_eq!(circles(&arrows), Vec::<String>::new());
}

#[test]
fn known_arrows_are_seen() {
    let Some(clock) = crates().into_iter().find(|one| one.name == "clock") else { return };
    let modules = modules_of(&clock.root);
    let seen = arrows(&modules);
    assert!(seen.values().map(BTreeMap::len).sum::<usize>() > 10, "{seen:#?}");
}
