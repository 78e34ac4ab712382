//! What the crate exports, read from its source: enough of it to say whether the path of an item,
//! `Type::member` or `module::Type`, exists. Members that a macro writes are not seen. (That
//! rustdoc resolves the same links is what the documentation's own check shows.)

use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub struct Exports {
    /// `Type`, `function`, `module::Type`.
    names: HashSet<String>,
    /// `Type::member`: methods, constants, variants, fields.
    members: HashSet<String>,
}

impl Exports {
    /// `files` are those of `src`, by path from there.
    pub fn new(files: &HashMap<String, String>) -> Self {
        let mut exports = Self::default();
        let root = files.get("lib.rs").map(String::as_str).unwrap_or_default();
        exports.add_names("", &without_inline_modules(root));
        for (module, content) in inline_modules(root) {
            exports.add_names(&format!("{module}::"), content);
        }
        for module in file_modules(root) {
            let places = [format!("{module}.rs"), format!("{module}/mod.rs")];
            for text in places.iter().filter_map(|place| files.get(place)) {
                exports.add_names(&format!("{module}::"), text);
            }
        }
        files.values().for_each(|text| exports.add_members(text));
        exports
    }

    /// Whether a path from the crate's root names an item.
    pub fn has(&self, path: &str) -> bool {
        if self.names.contains(path) {
            return true;
        }
        let Some((owner, member)) = path.rsplit_once("::") else {
            return false;
        };
        let short = owner.rsplit("::").next().unwrap_or(owner);
        self.names.contains(owner) && self.members.contains(&format!("{short}::{member}"))
    }

    fn add_names(&mut self, prefix: &str, text: &str) {
        for (at, _) in text.match_indices("pub use ") {
            let rest = &text[at + "pub use ".len()..];
            let list = rest.split(';').next().unwrap_or_default();
            let list = list.rsplit_once("::{").map_or(list, |(_, names)| names);
            for name in list.trim_end_matches('}').split(',') {
                let name = name.trim().rsplit([':', ' ']).next().unwrap_or_default();
                if !name.is_empty() {
                    self.names.insert(format!("{prefix}{name}"));
                }
            }
        }
        for line in text.lines() {
            // Of what is indented only the sets of flags, which stand in `bitflags!`.
            let flags = line.trim_start();
            let flags = flags.starts_with("pub struct ") && flags.contains(": u");
            let line = if flags { line.trim_start() } else { line };
            if let Some(name) = public_item(line) {
                self.names.insert(format!("{prefix}{name}"));
            }
        }
    }

    fn add_members(&mut self, text: &str) {
        // The types whose blocks are open, with the line that closes each.
        let mut open: Vec<(String, bool, String)> = Vec::new();
        for line in text.lines() {
            if open.last().is_some_and(|(_, _, closing)| line == closing) {
                open.pop();
                continue;
            }
            let trimmed = line.trim_start();
            let opens = !line.ends_with([';', '(', '}']);
            if let Some((name, has_variants)) = block_of(trimmed).filter(|_| opens) {
                let indent = " ".repeat(line.len() - trimmed.len());
                open.push((name.into(), has_variants, format!("{indent}}}")));
                continue;
            }
            let Some((name, has_variants, closing)) = open.last() else {
                continue;
            };
            let is_direct = line.len() - trimmed.len() == closing.len() + 3;
            if let Some(member) = member_of(trimmed, *has_variants).filter(|_| is_direct) {
                self.members.insert(format!("{name}::{member}"));
            }
        }
    }
}

/// The name of the type whose members the block has that this line opens, and whether they are
/// public as they stand (variants, flags, methods of a trait).
fn block_of(line: &str) -> Option<(&str, bool)> {
    if let Some(rest) = line.strip_prefix("impl") {
        let target = rest.rsplit_once(" for ").map_or(rest, |(_, target)| target);
        let target = match target.strip_prefix('<') {
            Some(generic) => generic.split_once("> ")?.1,
            None => target,
        };
        return Some((first_word(target.trim_start())?, false));
    }
    let rest = line.strip_prefix("pub ")?;
    let (keyword, rest) = rest.split_once(' ')?;
    let has_variants = match keyword {
        "struct" => rest.contains(": u"),
        "enum" | "trait" => true,
        _ => return None,
    };
    Some((first_word(rest)?, has_variants))
}

fn member_of(line: &str, is_public: bool) -> Option<&str> {
    let public = line.strip_prefix("pub ");
    let rest = public.or(is_public.then_some(line))?;
    let rest = ["async ", "unsafe ", "const fn "]
        .iter()
        .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    let rest = ["fn ", "const "]
        .iter()
        .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    first_word(rest)
}

/// The item that a line declares for everybody.
fn public_item(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = rest.strip_prefix("async ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    let keywords = ["struct", "enum", "trait", "fn", "const", "type"];
    keywords.contains(&keyword).then(|| first_word(rest))?
}

fn first_word(text: &str) -> Option<&str> {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    Some(&text[..end]).filter(|word| !word.is_empty())
}

/// `pub mod name { .. }` of the root.
fn inline_modules(root: &str) -> Vec<(&str, &str)> {
    let heads = root.match_indices("\npub mod ");
    heads
        .filter_map(|(at, head)| {
            let rest = &root[at + head.len()..];
            let (name, rest) = rest.split_once([' ', ';'])?;
            let content = rest.strip_prefix("{\n")?;
            Some((name, content.split("\n}").next()?))
        })
        .collect()
}

/// The root's text without what its inline modules have.
fn without_inline_modules(root: &str) -> String {
    let modules = inline_modules(root);
    modules
        .into_iter()
        .fold(root.to_owned(), |text, (_, content)| {
            text.replace(content, "")
        })
}

/// `pub mod name;` of the root.
fn file_modules(root: &str) -> Vec<&str> {
    let lines = root
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod "));
    lines.filter_map(|line| line.strip_suffix(';')).collect()
}
