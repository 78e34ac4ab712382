//! What the library logs, by docs/events.md: each event of the source is a row there, with its
//! level and its fields, and each row is in the source.

use std::collections::BTreeSet;

use crate::source::Source;

/// Level, message, and the fields in the order of their names.
pub type LoggedEvent = (String, String, Vec<String>);

/// The events of this file's product code.
pub fn of_source(file: &Source) -> Vec<LoggedEvent> {
    let product = (0..file.lines.len()).filter(|at| !file.test[*at]);
    let product = product.filter(|at| file.comments[*at].trim().is_empty());
    let text: Vec<&str> = product.map(|at| file.lines[at].as_str()).collect();
    let text = text.join("\n");
    let found = text.match_indices("tracing::");
    let found = found.filter_map(|(at, word)| {
        let (level, rest) = text[at + word.len()..].split_once("!(")?;
        let is_level = ["error", "warn", "info", "debug", "trace"].contains(&level);
        is_level.then(|| event(level, arguments(rest)))
    });
    found.collect()
}

/// The arguments of a macro call, split at its commas, without the parenthesis that ends it.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut in_text) = (0, false);
    let mut all = vec![String::new()];
    for c in text.chars() {
        match c {
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text && depth == 0 => break,
            ')' if !in_text => depth -= 1,
            ',' if !in_text && depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        all.last_mut().expect("there is one").push(c);
    }
    let all = all.iter().map(|argument| argument.trim().to_owned());
    all.filter(|argument| !argument.is_empty()).collect()
}

fn event(level: &str, arguments: Vec<String>) -> LoggedEvent {
    let (texts, rest): (Vec<String>, Vec<String>) =
        arguments.into_iter().partition(|it| it.starts_with('"'));
    let message = texts.concat().trim_matches('"').to_owned();
    let fields = rest.iter().filter(|it| !it.starts_with("parent:"));
    let names = fields.map(|it| {
        let name = it.split('=').next().unwrap_or_default().trim();
        name.trim_start_matches(['%', '?']).to_owned()
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    (level.to_owned(), message, names)
}

/// The rows of the table whose head is `| level | event |`.
pub fn of_page(text: &str) -> Vec<LoggedEvent> {
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| level | event"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let mut fields: Vec<String> = (cells[3].split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect();
        fields.sort();
        (cells[1].to_owned(), cells[2].to_owned(), fields)
    });
    rows.collect()
}

/// What stands in one of the two alone.
pub fn check(source: Vec<LoggedEvent>, page: Vec<LoggedEvent>) -> Vec<String> {
    let (source, page): (BTreeSet<_>, BTreeSet<_>) =
        (source.into_iter().collect(), page.into_iter().collect());
    let unsaid = (source.difference(&page)).map(|it| format!("docs/events.md lacks {it:?}"));
    let gone = (page.difference(&source)).map(|it| format!("the source lacks {it:?}"));
    unsaid.chain(gone).collect()
}
