//! Whether the tests that a row names show it, and whether tests quote only what is shown.

use std::collections::HashMap;

use crate::ledger::{Ledger, Promise, Row, promise};

/// A function of a source file, with what stands above it.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    /// Its doc comment, one space between words.
    pub doc: String,
    /// From its head to the brace that closes it.
    pub body: String,
    is_test: bool,
    is_ignored: bool,
}

/// The functions of the files that were read, by path.
pub type Sources = HashMap<String, Vec<Function>>;

/// Every test that the row names exists, runs by default and quotes the row's promise; of each
/// endpoint type that the row names there is one.
pub fn check_row(row: &Row, sources: &Sources, complaints: &mut Vec<String>) {
    let Some(promise) = promise(&row.text) else {
        return;
    };
    for test in &row.tests {
        if let Err(why) = check_test(test, &promise, sources) {
            complaints.push(format!("`{}`: {test}: {why}", row.id));
        }
    }
    let types = types_named(&row.text);
    if types.len() < 2 || row.tests.is_empty() {
        return;
    }
    for endpoint_type in types {
        let is_of_type = |test: &String| {
            let function = find(test, sources).ok();
            function.is_some_and(|function| is_about(endpoint_type, test, function))
        };
        if !row.tests.iter().any(is_of_type) {
            complaints.push(format!(
                "`{}` names {endpoint_type}, and none of its tests is about that",
                row.id
            ));
        }
    }
}

/// No test quotes what is not shown: the words of a row that is declined, explains or is not yet
/// done stand above no test, unless another row of the same words is shown.
pub fn check_quotations(ledger: &Ledger, sources: &Sources, complaints: &mut Vec<String>) {
    let quoted = |row: &Row| match promise(&row.text) {
        Some(Promise::Quoted(quote)) => Some(squeeze(quote)),
        _ => None,
    };
    let (shown, other): (Vec<&Row>, Vec<&Row>) =
        ledger.rows.iter().partition(|row| row.state.is_shown());
    let shown: Vec<String> = shown.into_iter().filter_map(quoted).collect();
    let other: Vec<(&Row, String)> = other
        .into_iter()
        .filter_map(|row| Some((row, quoted(row)?)))
        .filter(|(_, quote)| !shown.iter().any(|it| it.contains(quote)))
        .collect();
    for (path, functions) in sources {
        for function in functions.iter().filter(|it| it.is_test) {
            let quotations: Vec<&str> = function.doc.split('"').skip(1).step_by(2).collect();
            for (row, quote) in &other {
                if quotations.iter().any(|it| it.contains(quote.as_str())) {
                    complaints.push(format!(
                        "{path}::{}: it quotes `{}`, which is not shown",
                        function.name, row.id
                    ));
                }
            }
        }
    }
}

fn check_test(test: &str, promise: &Promise<'_>, sources: &Sources) -> Result<(), String> {
    let function = find(test, sources)?;
    if !function.is_test {
        return Err("the function is not a test".into());
    }
    if function.is_ignored {
        return Err("it is ignored by default, so it shows nothing".into());
    }
    let needed = match promise {
        Promise::Quoted(quote) => squeeze(quote),
        Promise::Named(name) => format!("`{name}`"),
    };
    if function.doc.contains(&needed) {
        Ok(())
    } else {
        Err(format!("its doc comment does not contain: {needed}"))
    }
}

fn find<'a>(test: &str, sources: &'a Sources) -> Result<&'a Function, String> {
    let (path, name) = test.split_once("::").ok_or("not `file.rs::test_name`")?;
    let functions = sources.get(path).ok_or("no such file below src or tests")?;
    let mut found = functions.iter().filter(|function| function.name == name);
    let function = found.next().ok_or("no such function")?;
    match found.next() {
        None => Ok(function),
        Some(_) => Err("two functions have this name; give the test its own".into()),
    }
}

/// The endpoint types that a row's text names: `RDM/MSG EP` has two.
fn types_named(text: &str) -> Vec<&'static str> {
    let words: Vec<&str> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let named = [
        ("MSG", "FI_EP_MSG"),
        ("RDM", "FI_EP_RDM"),
        ("DGRAM", "FI_EP_DGRAM"),
    ]
    .into_iter()
    .filter(|(short, long)| words.contains(short) || words.contains(long));
    named.map(|(short, _)| short).collect()
}

/// Whether the test is about endpoints of this type: by its path, its name or its code.
fn is_about(endpoint_type: &str, test: &str, function: &Function) -> bool {
    let code = format!("{test} {}", function.body).to_lowercase();
    let words: &[&str] = match endpoint_type {
        "MSG" => &["/msg", "::msg", "connected_endpoint"],
        "RDM" => &["rdm", "connectionless"],
        _ => &["dgram", "datagram"],
    };
    words.iter().any(|word| code.contains(word))
}

/// The functions of a file. One inside of `proptest!` counts like any other: it carries `#[test]`
/// there too.
pub fn functions(source: &str) -> Vec<Function> {
    let lines: Vec<&str> = source.lines().collect();
    let heads = lines.iter().enumerate();
    heads
        .filter_map(|(place, line)| Some(function(&lines, place, name_of_head(line.trim())?)))
        .collect()
}

fn function(lines: &[&str], place: usize, name: &str) -> Function {
    // Upwards, over attributes and doc lines in any order. A line that closes an attribute it did
    // not open takes everything up to the opening line with it.
    let (mut doc, mut in_attribute) = (Vec::new(), false);
    let (mut is_test, mut is_ignored) = (false, false);
    for line in lines[..place].iter().rev().map(|line| line.trim()) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text);
        } else if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
            is_ignored |= line.starts_with("#[ignore");
            in_attribute = false;
        } else if line.ends_with(")]") {
            in_attribute = true;
        } else if !in_attribute || line.is_empty() {
            break;
        }
    }
    doc.reverse();

    let indent = lines[place].len() - lines[place].trim_start().len();
    let closing = format!("{}}}", " ".repeat(indent));
    let body = &lines[place..];
    let end = body.iter().position(|line| *line == closing);
    let body = &body[..end.map_or(1, |end| end + 1)];
    Function {
        name: name.into(),
        doc: squeeze(&doc.join(" ")),
        body: body.join("\n"),
        is_test,
        is_ignored,
    }
}

/// The name of the function that this line begins.
fn name_of_head(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let rest = line.strip_prefix("fn ")?;
    rest.find(['(', '<']).map(|end| &rest[..end])
}

/// `#[test]`, `#[tokio::test]`, `#[tokio::test(..)]`, and the like.
fn is_test_attribute(line: &str) -> bool {
    let inner = line.trim_start_matches("#[");
    let path = inner.split(['(', ']']).next().unwrap_or_default();
    path == "test" || path.ends_with("::test")
}

/// One space between words, none at the ends.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
