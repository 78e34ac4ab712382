//! Names and words that say nothing to an engineer of the field.

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

/// Where a type or a function has one of the names, or a comment one of the words.
pub fn check(file: &Source) -> Vec<String> {
    let names = file.code.iter().enumerate().filter_map(|(at, line)| {
        let (keyword, name) = declared(line)?;
        let names = if keyword == "fn" { FUNCTIONS } else { TYPES };
        names
            .contains(&name)
            .then(|| refused(&file.path, at, &format!("{keyword} {name}")))
    });
    let comments = file.comments.iter().enumerate();
    let words = comments.flat_map(|(at, line)| check_line(&file.path, at, line));
    names.chain(words).collect()
}

/// Where a page has one of the words.
pub fn check_page(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(at, line)| check_line(path, at, line))
        .collect()
}

fn check_line(path: &str, at: usize, line: &str) -> Vec<String> {
    let line = line.to_lowercase();
    let words = WORDS.iter().filter(|word| has(&line, word));
    words.map(|word| refused(path, at, word)).collect()
}

fn refused(path: &str, at: usize, name: &str) -> String {
    format!("{path}:{}: `{name}`: use the field's term", at + 1)
}

/// The keyword and the name of what a line declares.
fn declared(line: &str) -> Option<(&str, &str)> {
    let mut words = line
        .split(|c: char| !is_word(c))
        .filter(|word| !word.is_empty());
    let keyword = words.find(|word| ["struct", "enum", "trait", "type", "fn"].contains(word))?;
    Some((keyword, words.next()?))
}

/// True if `word` stands in the line as a whole word.
fn has(line: &str, word: &str) -> bool {
    let is_edge = |c: Option<char>| !c.is_some_and(is_word);
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        is_edge(before.chars().next_back()) && is_edge(after.chars().next())
    })
}

#[test]
fn names_are_refused_where_they_are_declared_and_words_in_comments() {
    let text = "/// Nobody is told.\nstruct Place<T>(T);\nfn look() { let told = Place(1); }\n";
    let found = check(&Source::new("x.rs", text));
    let expected = [
        (2, "struct Place"),
        (3, "fn look"),
        (1, "told"),
        (1, "nobody"),
    ];
    assert_eq!(
        found,
        expected.map(|(line, name)| refused("x.rs", line - 1, name))
    );
    assert_eq!(check_page("x.md", "untold\nIt tells.").len(), 1);
}
