//! Who imports whom: `crate::` and `super::` paths against the table in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, find_word, is_word};

/// What each module may import, in the order of the table: a row names only rows above it.
pub struct Table {
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// Reads the table whose head is `| module | may import |`.
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut lines = text
            .lines()
            .skip_while(|line| !line.starts_with("| module | may import"));
        if lines.next().is_none() {
            return Err("no import table".to_owned());
        }
        let names = |cell: &str| -> Vec<String> {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.split('|').collect();
            let (Some(modules), Some(imports)) = (cells.get(1), cells.get(2)) else {
                return Err(format!("not a row of the import table: {line}"));
            };
            let imports = names(imports);
            if let Some(above) = imports
                .iter()
                .find(|name| !rows.iter().any(|row| row.0 == **name))
            {
                return Err(format!(
                    "{above} is imported but stands nowhere above: {line}"
                ));
            }
            rows.extend(
                names(modules)
                    .into_iter()
                    .map(|module| (module, imports.clone())),
            );
        }
        Ok(Table { rows })
    }

    fn allowed(&self, module: &str) -> Option<&[String]> {
        self.rows
            .iter()
            .find(|row| row.0 == module)
            .map(|row| row.1.as_slice())
    }
}

/// Where the names come from that `lib.rs` exports at the root.
pub fn root_names(lib: &Source) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let text = lib.product_text();
    for statement in text
        .split(';')
        .filter_map(|item| item.trim().rsplit("pub use ").next())
    {
        let Some((module, exported)) = statement.split_once("::") else {
            continue;
        };
        // A public module of names that are not at the root.
        if module == "crate" {
            continue;
        }
        for name in exported
            .split(|c: char| !is_word(c) && c != '*')
            .filter(|n| !n.is_empty())
        {
            names.insert(name.to_owned(), module.to_owned());
        }
    }
    names
}

/// Every import of the file that the table does not allow.
pub fn check(source: &Source, table: &Table, root: &BTreeMap<String, String>) -> Vec<String> {
    let path = module_path(&source.path);
    let Some(module) = path.first().filter(|module| *module != "lib") else {
        return Vec::new();
    };
    let Some(allowed) = table.allowed(module) else {
        return vec![format!(
            "{}: {module} has no row in the import table",
            source.path
        )];
    };
    let mut wrong = Vec::new();
    for (line, name) in imported(&source.product_text(), path.len()) {
        let is_type = name.starts_with(|c: char| c.is_uppercase());
        let from = match root.get(&name) {
            Some(from) => from.as_str(),
            // One module is exported as a whole; its names are not listed.
            None if is_type => root.get("*").map_or(name.as_str(), String::as_str),
            None => name.as_str(),
        };
        if from != module && !allowed.iter().any(|allowed| allowed == from) {
            wrong.push(format!(
                "{}:{line}: {module} may not import {from}",
                source.path
            ));
        }
    }
    wrong
}

/// `src/a/b.rs` is `[a, b]`, `src/a/mod.rs` is `[a]`.
fn module_path(path: &str) -> Vec<String> {
    let inside = path
        .trim_start_matches("src/")
        .trim_end_matches(".rs")
        .trim_end_matches("/mod");
    inside.split('/').map(str::to_owned).collect()
}

/// The first name after each `crate::` (or enough `super::` to get there), with its line.
fn imported(text: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let root_by_super = "super::".repeat(depth);
    for prefix in ["crate::", root_by_super.as_str()] {
        for (at, _) in text.match_indices(prefix) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| is_word(c) || c == ':') {
                continue;
            }
            let line = 1 + text[..at].matches('\n').count();
            let rest = &text[at + prefix.len()..];
            for name in first_names(rest) {
                found.push((line, name));
            }
        }
    }
    found
}

/// The names that a path or a group of paths begins with: `{a::b, c::{d, e}}` has a and c.
fn first_names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else {
        return vec![
            rest.chars()
                .take_while(|c| is_word(*c) || *c == '*')
                .collect(),
        ];
    };
    let (mut names, mut depth, mut fresh) = (Vec::new(), 0, true);
    let mut name = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            _ if depth == 0 && fresh && is_word(c) => name.push(c),
            _ => {
                if !name.is_empty() {
                    names.push(std::mem::take(&mut name));
                    fresh = false;
                }
                continue;
            }
        }
        if !name.is_empty() && !is_word(c) {
            names.push(std::mem::take(&mut name));
        }
    }
    names.extend(Some(name).filter(|name| !name.is_empty()));
    names
}

/// What a folder may not name at all, whatever it imports.
pub fn check_words(source: &Source, folder: &str, words: &[&str]) -> Vec<String> {
    if !source.path.starts_with(&format!("src/{folder}/")) {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (at, line) in source.product() {
        for word in words.iter().filter(|word| find_word(line, word).is_some()) {
            wrong.push(format!(
                "{}:{at}: {folder} may not name {word}",
                source.path
            ));
        }
    }
    wrong
}

/// What one module may take from another, by name.
pub fn check_names(source: &Source, folder: &str, from: &str, names: &[&str]) -> Vec<String> {
    if !source.path.starts_with(&format!("src/{folder}/")) {
        return Vec::new();
    }
    let text = source.product_text();
    let prefix = format!("crate::{from}::");
    let mut wrong = Vec::new();
    for (at, _) in text.match_indices(&prefix) {
        let line = 1 + text[..at].matches('\n').count();
        for name in first_names(&text[at + prefix.len()..]) {
            if !names.contains(&name.as_str()) {
                wrong.push(format!(
                    "{}:{line}: {folder} may not use {from}::{name}",
                    source.path
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
const SAMPLE: &str = "
| module | may import |
|---|---|
| `id` `error` | |
| `wire` | `error` |
| `eq` | `error` `id` |
";

#[cfg(test)]
fn sample(path: &str, text: &str) -> Vec<String> {
    let lib = Source::new(
        "src/lib.rs",
        "mod id;\npub use error::{Error, Kind};\npub use wire::*;",
    );
    check(
        &Source::new(path, text),
        &Table::parse(SAMPLE).unwrap(),
        &root_names(&lib),
    )
}

#[test]
fn a_table_names_only_what_stands_above() {
    assert!(Table::parse("no table").is_err());
    assert!(Table::parse("| module | may import |\n|--|--|\n| `a` | `b` |\n| `b` | |").is_err());
}

#[test]
fn an_import_outside_of_the_table_is_found() {
    assert_eq!(
        sample(
            "src/eq/mod.rs",
            "use crate::error::Error;\nuse super::error;"
        ),
        [""; 0]
    );
    assert_eq!(sample("src/eq/mod.rs", "use crate::wire::Op;").len(), 1);
    assert_eq!(
        sample("src/eq/mod.rs", "use crate::{id, wire::{Op, id}};").len(),
        1
    );
    assert_eq!(
        sample(
            "src/eq/event.rs",
            "fn f() { crate::wire::op(); super::wire(); }"
        )
        .len(),
        1
    );
    assert_eq!(
        sample("src/eq/event.rs", "use super::super::wire::Op;").len(),
        1
    );
    assert_eq!(
        sample("src/eq/event.rs", "fn f(op: crate::Op, e: crate::Error) {}").len(),
        1
    );
    assert_eq!(sample("src/new.rs", "").len(), 1);
    assert_eq!(
        sample(
            "src/eq/mod.rs",
            "#[cfg(test)]\nmod t { use crate::wire::Op; }"
        ),
        [""; 0]
    );
    assert_eq!(
        sample("src/eq/mod.rs", "/// [`x`](crate::wire::Op)\nfn f() {}"),
        [""; 0]
    );
}

#[test]
fn forbidden_words_and_names_are_found() {
    let proto = |text| Source::new("src/proto/a.rs", text);
    assert_eq!(
        check_words(&proto("let m = Mutex::new(1);"), "proto", &["Mutex"]).len(),
        1
    );
    assert_eq!(
        check_words(&proto("// a Mutex\n"), "proto", &["Mutex"]),
        [""; 0]
    );
    let endpoint = Source::new("src/endpoint/a.rs", "use crate::proto::{Connection, Post};");
    assert_eq!(
        check_names(&endpoint, "endpoint", "proto", &["Post"]).len(),
        1
    );
}

/// A circle among the modules at the root of a crate, if there is one: each imports the next, and
/// the last the first.
pub fn circle(files: &[Source], folder: &str) -> Option<Vec<String>> {
    let in_crate = |file: &Source| {
        let inside = file.path.trim_start_matches(folder);
        let path = inside.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect::<Vec<_>>()
    };
    let lib = files.iter().find(|file| in_crate(file) == ["lib"])?;
    let root = root_names(lib);
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let path = in_crate(file);
        if path == ["lib"] || path.contains(&"tests".to_owned()) {
            continue;
        }
        let own = imports.entry(path[0].clone()).or_default();
        for (_, name) in imported(&file.product_text(), path.len()) {
            own.insert(root.get(&name).cloned().unwrap_or(name));
        }
        own.remove(&path[0]);
    }
    // What imports none of those that are left is taken away, until nothing is.
    loop {
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|_, own| own.intersection(&left).next().is_some());
        if imports.len() == left.len() {
            break;
        }
    }
    let mut walk = vec![imports.keys().next()?.clone()];
    loop {
        let last = &imports[walk.last().expect("it has one")];
        let next = last.iter().find(|it| imports.contains_key(*it))?;
        if let Some(at) = walk.iter().position(|it| it == next) {
            return Some(walk.split_off(at));
        }
        walk.push(next.clone());
    }
}
