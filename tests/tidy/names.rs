//! One name, one type: how often `src` may declare a type of the same name. The numbers of
//! `names.txt` may only become smaller.

use std::collections::BTreeMap;

use crate::source::{Source, find_word, is_word};

/// Private names that every module may have, since they say what a type is for in any of them.
const IDIOMS: [(&str, &str); 3] = [
    ("State", "what a lock guards"),
    ("Inner", "what the handles of one object share"),
    (
        "Sealed",
        "the supertrait that closes a trait to other crates",
    ),
];

/// Where `src` declares each type that it declares more than once.
pub fn repeated(files: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        for (at, line) in file.product() {
            if let Some(name) = declared(line) {
                let place = format!("{}:{at}", file.path);
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    places
}

/// The type that a line declares, unless it is a private idiom.
fn declared(line: &str) -> Option<&str> {
    let keywords = ["struct", "enum", "trait", "union", "type"];
    let keyword = keywords
        .iter()
        .find(|word| find_word(line, word).is_some())?;
    let (before, after) = line.split_at(find_word(line, keyword)?);
    // A type of a trait, or of one implementation of it.
    let is_associated = *keyword == "type" && before.starts_with(' ');
    let name = after[keyword.len()..].trim_start();
    let name = &name[..name.find(|c| !is_word(c)).unwrap_or(name.len())];
    let is_private = before.trim().is_empty() || name == "Sealed";
    let is_idiom = is_private && IDIOMS.iter().any(|(idiom, _)| *idiom == name);
    (!name.is_empty() && !is_associated && !is_idiom).then_some(name)
}

/// Reads `names.txt`: number, name, and maybe the reason.
pub fn parse(text: &str) -> Result<BTreeMap<String, (usize, String)>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut cells = line.splitn(3, ' ');
            let (number, name) = (cells.next(), cells.next());
            let number = number.and_then(|number| number.parse().ok());
            match (number, name) {
                (Some(number), Some(name)) => {
                    let reason = cells.next().unwrap_or_default();
                    Ok((name.to_owned(), (number, reason.to_owned())))
                }
                _ => Err(format!("names.txt: not `number name reason`: {line}")),
            }
        })
        .collect()
}

/// The names that are declared more often than they may be.
pub fn check(
    found: &BTreeMap<String, Vec<String>>,
    allowed: &BTreeMap<String, (usize, String)>,
) -> Vec<String> {
    let most = |name: &str| allowed.get(name).map_or(1, |(most, _)| *most);
    let more = found
        .iter()
        .filter(|(name, places)| places.len() > most(name));
    more.map(|(name, places)| {
        format!(
            "`{name}` is declared {} times, at most {} are allowed: {}",
            places.len(),
            most(name),
            places.join(", ")
        )
    })
    .collect()
}

/// `names.txt` with the smaller number of each.
pub fn fewer(
    found: &BTreeMap<String, Vec<String>>,
    allowed: &BTreeMap<String, (usize, String)>,
) -> String {
    let mut text = "# See names.rs. These numbers may only become smaller:\n\
                    # TOKIO_FABRIC_FEWER_NAMES=1 cargo test --test tidy\n"
        .to_owned();
    for (name, (most, reason)) in allowed {
        if let Some(places) = found.get(name) {
            let line = format!("{} {name} {reason}", places.len().min(*most));
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
fn sample() -> BTreeMap<String, Vec<String>> {
    let one =
        "pub(crate) struct Place<T>(T);\nstruct State;\nimpl A for B {\n    type Item = u8;\n}";
    let two = "    enum Place {}\nstruct State;\ntype Item = u8;\n#[cfg(test)]\nstruct Item;";
    repeated(&[Source::new("src/a.rs", one), Source::new("src/b.rs", two)])
}

#[test]
fn a_type_that_is_declared_twice_is_found() {
    let places = ["src/a.rs:1", "src/b.rs:1"].map(str::to_owned);
    assert_eq!(
        sample(),
        BTreeMap::from([("Place".to_owned(), places.to_vec())])
    );
    assert_eq!(check(&sample(), &BTreeMap::new()).len(), 1);
}

#[test]
fn a_repeated_name_may_only_become_rarer() {
    let allowed = parse("# head\n3 Place two worlds\n2 Gone").unwrap();
    assert_eq!(check(&sample(), &allowed), [""; 0]);
    let fewer = fewer(&sample(), &allowed);
    assert!(fewer.ends_with("\n2 Place two worlds\n"), "{fewer}");
    assert!(parse("Place 3").is_err());
}
