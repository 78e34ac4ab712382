//! Who searches the documentation for a name of libfabric's finds its item: the names of the pages
//! for people against the aliases in the source (`#[doc(alias = "fi_send")]`).

use std::collections::HashSet;

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
    let page = "| libfabric | here |\n|---|---|\n| `fi_a`, `fi_b.name` | [`A`] | yes |\n| `fi_c` | - | declined |\n";
    assert_eq!(names(page), ["fi_a", "fi_b"]);
    let source =
        "#[doc(alias(\n    \"fi_a\",\n    \"fi_x\"\n))]\nfn a() {}\n#[doc(alias = \"fi_y\")]\n";
    let known = aliases([source].into_iter());
    assert_eq!(known, HashSet::from(["fi_a", "fi_x", "fi_y"]));
    let mut complaints = Vec::new();
    check(page, &known, &mut complaints);
    assert_eq!(complaints, ["no item has the alias `fi_b`"]);
}
