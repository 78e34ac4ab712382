//! Names and words that say nothing to an engineer of the field: how often each may still stand in
//! a folder of the root. The numbers of `words.txt` may only become smaller.

use std::collections::BTreeMap;

use crate::source::{Source, is_word};

/// Bare nouns that do not say the kind of a type.
const TYPES: &[&str] = &[
    "Account",
    "After",
    "Alone",
    "Asked",
    "Before",
    "Bell",
    "Cargo",
    "Carving",
    "Claim",
    "Crowd",
    "Demands",
    "Denied",
    "Desk",
    "Draft",
    "Driven",
    "End",
    "Ended",
    "Ending",
    "Facts",
    "Fate",
    "Fetched",
    "Few",
    "Found",
    "Gone",
    "Greedy",
    "Happening",
    "Held",
    "Home",
    "Inmate",
    "Inside",
    "Landing",
    "Last",
    "Life",
    "Made",
    "Mail",
    "Manner",
    "Mark",
    "More",
    "NotMade",
    "Outbox",
    "Pace",
    "Piece",
    "Place",
    "Room",
    "Seat",
    "Shape",
    "Side",
    "Stall",
    "Telling",
    "Terms",
    "Through",
    "To",
    "Told",
    "Turned",
    "Untold",
    "Way",
    "What",
    "Word",
    "World",
];

/// Verbs that are not the field's.
const FUNCTIONS: &[&str] = &[
    "beside",
    "dwell",
    "end_of_patience",
    "enlist",
    "has_had_enough",
    "leave",
    "leftovers",
    "live_with",
    "look",
    "orphan",
    "rest",
    "settle",
    "tell",
];

/// Words of comments, for which there are better ones: notify, report, deliver; a component's name;
/// never, indefinitely; heartbeat.
const WORDS: &[&str] = &[
    "told",
    "tell",
    "tells",
    "whoever",
    "nobody",
    "somebody",
    "for ever",
    "signs of life",
    "vouch",
    "vouches",
];

/// How often a name or a word stands in a folder.
pub type Counts = BTreeMap<(String, String), usize>;

/// Counts all of them.
pub fn count(files: &[Source]) -> Counts {
    let mut counts = Counts::new();
    for file in files {
        let mut add = |name: String, times: usize| {
            if times > 0 {
                *counts.entry((folder(&file.path), name)).or_default() += times;
            }
        };
        for line in &file.code {
            let Some((keyword, name)) = declared(line) else {
                continue;
            };
            let names = if keyword == "fn" { FUNCTIONS } else { TYPES };
            if names.contains(&name) {
                add(format!("{keyword} {name}"), 1);
            }
        }
        for comment in &file.comments {
            let comment = comment.to_lowercase();
            for word in WORDS {
                add((*word).to_owned(), times(&comment, word));
            }
        }
    }
    counts
}

/// Reads `words.txt`: folder, number, name.
pub fn parse(text: &str) -> Result<Counts, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut cells = line.splitn(3, ' ');
            let (folder, number, name) = (cells.next(), cells.next(), cells.next());
            let number = number.and_then(|number| number.parse().ok());
            match (folder, number, name) {
                (Some(folder), Some(number), Some(name)) => {
                    Ok(((folder.to_owned(), name.to_owned()), number))
                }
                _ => Err(format!("words.txt: not `folder number name`: {line}")),
            }
        })
        .collect()
}

/// The text of `words.txt`.
pub fn print(counts: &Counts) -> String {
    let head = "# See words.rs. These numbers may only become smaller:\n\
                # TOKIO_FABRIC_FEWER_WORDS=1 cargo test --test tidy\n";
    let lines = counts
        .iter()
        .map(|((folder, name), number)| format!("{folder} {number} {name}\n"));
    head.to_owned() + &lines.collect::<String>()
}

/// What stands more often than it may.
pub fn check(found: &Counts, allowed: &Counts) -> Vec<String> {
    let most = |key| allowed.get(key).copied().unwrap_or_default();
    let more = found.iter().filter(|(key, number)| **number > most(*key));
    more.map(|(key, number)| {
        let (folder, name) = key;
        format!(
            "{folder}: `{name}` stands {number} times, at most {} are allowed: use the field's term",
            most(key)
        )
    })
    .collect()
}

/// The smaller number of each.
pub fn fewer(found: &Counts, allowed: &Counts) -> Counts {
    let both = allowed
        .iter()
        .filter_map(|(key, most)| Some((key.clone(), *found.get(key)?.min(most))));
    both.collect()
}

/// `src`, `tests`, ..: files that move within one take their words along.
fn folder(path: &str) -> String {
    path.split('/').next().unwrap_or_default().to_owned()
}

/// The keyword and the name of what a line declares.
fn declared(line: &str) -> Option<(&str, &str)> {
    let mut words = line
        .split(|c: char| !is_word(c))
        .filter(|word| !word.is_empty());
    let keyword = words.find(|word| ["struct", "enum", "trait", "type", "fn"].contains(word))?;
    Some((keyword, words.next()?))
}

/// How often `word` stands in the line as a whole word.
fn times(line: &str, word: &str) -> usize {
    let is_edge = |c: Option<char>| !c.is_some_and(is_word);
    line.match_indices(word)
        .filter(|(at, _)| {
            let (before, after) = (&line[..*at], &line[at + word.len()..]);
            is_edge(before.chars().next_back()) && is_edge(after.chars().next())
        })
        .count()
}

#[cfg(test)]
fn sample() -> Counts {
    let text = "/// Nobody is told.\npub(crate) struct Place<T>(T);\nfn look() { let told = 1; }\n";
    count(&[Source::new("src/mr/sample.rs", text)])
}

#[test]
fn names_are_counted_where_they_are_declared_and_words_in_comments() {
    let found: Vec<_> = sample().into_iter().collect();
    let key = |name: &str| (("src".to_owned(), name.to_owned()), 1);
    let expected = ["fn look", "nobody", "struct Place", "told"].map(key);
    assert_eq!(found, expected);
}

#[test]
fn a_number_may_only_become_smaller() {
    let found = sample();
    assert_eq!(check(&found, &found), [""; 0]);
    assert_eq!(check(&found, &Counts::new()).len(), 4);
    assert_eq!(parse(&print(&found)), Ok(found.clone()));
    assert!(parse("src/mr told").is_err());
    let mut more = found.clone();
    more.values_mut().for_each(|number| *number += 1);
    assert_eq!(fewer(&found, &more), found);
    assert_eq!(fewer(&more, &found), found);
    assert_eq!(fewer(&Counts::new(), &found), Counts::new());
}
