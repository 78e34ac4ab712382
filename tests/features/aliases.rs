//! Who searches the documentation for a name of libfabric's finds its item: the names of the pages
//! for people against the aliases in the source (`#[doc(alias = "fi_send")]`).

use std::collections::{HashMap, HashSet};

use crate::exports::Exports;

/// The names of a page's rows that have an item here. Of a field (`fi_domain_attr.name`) or an
/// argument (`fi_close(mr)`) it is what stands before it.
pub fn names(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let here = rows.filter_map(|line| {
        let mut cells = line.split(" | ");
        let names = cells.next()?;
        (cells.next()?.trim() != "-").then_some(names)
    });
    let names = here.flat_map(quoted);
    let names = names.map(|name| name.split(['.', '(']).next().unwrap_or(name));
    names
        .filter(|name| name.starts_with("fi_") || name.starts_with("FI_"))
        .collect()
}

/// The items that the second column of a page's rows names: `Type::member`, `module::Type`.
fn items(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|line| line.split(" | ").nth(1))
        .flat_map(quoted)
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// What stands in `#[doc(alias ..)]`.
pub fn aliases<'a>(files: impl Iterator<Item = &'a str>) -> HashSet<&'a str> {
    let attributes = files.flat_map(|text| text.split("#[doc(alias").skip(1));
    attributes
        .filter_map(|rest| rest.split(")]").next())
        .flat_map(|list| list.split('"').skip(1).step_by(2))
        .collect()
}

/// The names of the items that have each alias.
pub fn aliased<'a>(files: impl Iterator<Item = &'a str>) -> HashMap<&'a str, Vec<&'a str>> {
    let mut aliased: HashMap<&str, Vec<&str>> = HashMap::new();
    let attributes = files.flat_map(|text| text.split("#[doc(alias").skip(1));
    for (list, rest) in attributes.filter_map(|rest| rest.split_once(")]")) {
        for alias in list.split('"').skip(1).step_by(2) {
            aliased.entry(alias).or_default().extend(item(rest));
        }
    }
    aliased
}

/// The name of the first item: what follows attributes and comments.
fn item(text: &str) -> Option<&str> {
    let mut depth = 0;
    let mut lines = text.lines().map(str::trim).filter(|line| {
        let is_attribute = depth > 0 || line.starts_with("#[");
        if is_attribute {
            depth += line.matches(['(', '[']).count();
            depth -= line.matches([')', ']']).count();
        }
        !(is_attribute || line.is_empty() || line.starts_with("//"))
    });
    let words = lines
        .next()?
        .split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let mut words = words.skip_while(|word| QUALIFIERS.contains(word));
    words.next()
}

/// What may stand before the name of an item.
const QUALIFIERS: &[&str] = &[
    "", "pub", "async", "unsafe", "fn", "const", "struct", "enum", "trait", "type", "mod",
];

/// Who searches for a call of the table finds an item of its row.
pub fn check_rows(page: &str, aliased: &HashMap<&str, Vec<&str>>, complaints: &mut Vec<String>) {
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let items: Vec<&str> = items(row)
            .filter_map(|path| path.rsplit("::").next())
            .collect();
        let missing = names(row).into_iter().filter(|name| {
            let found = aliased.get(name).into_iter().flatten();
            !found.into_iter().any(|item| items.contains(item))
        });
        complaints
            .extend(missing.map(|name| {
                format!("from-libfabric.md: none of {items:?} has the alias `{name}`")
            }));
    }
}

pub fn check(page: &str, aliases: &HashSet<&str>, complaints: &mut Vec<String>) {
    let missing = names(page)
        .into_iter()
        .filter(|name| !aliases.contains(name));
    complaints.extend(missing.map(|name| format!("no item has the alias `{name}`")));
}

/// Every item that the table for those who come from libfabric names is there.
pub fn check_items(page: &str, exports: &Exports, complaints: &mut Vec<String>) {
    let missing = items(page).filter(|item| !exports.has(item));
    complaints.extend(missing.map(|item| format!("the crate exports no `{item}`")));
}

#[test]
fn a_name_without_an_alias_is_found() {
    let page = "| libfabric | here |\n|---|---|\n| `fi_a`, `fi_b.name` | [`A`] | works |\n| `fi_c` | - | declined |\n";
    assert_eq!(names(page), ["fi_a", "fi_b"]);
    let source =
        "#[doc(alias(\n    \"fi_a\",\n    \"fi_x\"\n))]\nfn a() {}\n#[doc(alias = \"fi_y\")]\n";
    let known = aliases([source].into_iter());
    assert_eq!(known, HashSet::from(["fi_a", "fi_x", "fi_y"]));
    let mut complaints = Vec::new();
    check(page, &known, &mut complaints);
    assert_eq!(complaints, ["no item has the alias `fi_b`"]);
}

#[test]
fn an_alias_at_an_item_of_another_row_is_found() {
    let source = "#[doc(alias = \"fi_a\")]\n#[must_use]\n/// Text.\npub async fn a() {}\n\
                  #[doc(alias(\n    \"fi_b\",\n    \"fi_c\"\n))]\npub struct B;\n";
    let known = aliased([source].into_iter());
    assert_eq!((&known["fi_a"], &known["fi_c"]), (&vec!["a"], &vec!["B"]));
    let page = "| `fi_a` | `A::a` | |\n| `fi_b` | `A::a`, `m::C` | |\n| `fi_c` | - | |\n";
    let mut complaints = Vec::new();
    check_rows(page, &known, &mut complaints);
    let expected = "from-libfabric.md: none of [\"a\", \"C\"] has the alias `fi_b`";
    assert_eq!(complaints, [expected]);
}
