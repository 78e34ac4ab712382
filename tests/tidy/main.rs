//! The rules of the house, as far as a machine can check them: ARCHITECTURE.md and CONTRIBUTING.md
//! say what they are for.

mod constants;
mod events;
mod imports;
mod names;
mod papers;
mod rules;
mod seeded;
mod source;
mod words;

use imports::Table;
use source::{Source, root, text};

/// Words that tie code to a machine, a clock or a runtime; protocol and wire have none of them.
const OUTSIDE_WORDS: [&str; 13] = [
    "tokio",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "Instant::now",
    "SystemTime",
    "Mutex",
    "RwLock",
    "Waker",
    "getrandom",
    "std::thread",
    "std::fs",
];

/// The values of the protocol that an endpoint may name; its machine is reached through progress.
const PROTO_VALUES: [&str; 10] = [
    "Arrival",
    "AtomicRequest",
    "Lifecycle",
    "MatchCriteria",
    "OpEnd",
    "OpKey",
    "OpKind",
    "Operation",
    "SourceId",
    "Withdrawn",
];

#[track_caller]
fn expect_none(wrong: impl IntoIterator<Item = String>) {
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

fn rust_files() -> Vec<Source> {
    ["src", "tests", "examples", "bench", "rpc"]
        .into_iter()
        .flat_map(Source::all_in)
        .collect()
}

fn pages() -> Vec<String> {
    let folders = ["", "docs/", "docs/guide/", "bench/", "examples/", "rpc/"].into_iter();
    let pages = folders.flat_map(|folder| {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
        entries.map(move |entry| {
            let name = entry.expect("a readable folder").file_name();
            format!("{folder}{}", name.to_string_lossy())
        })
    });
    pages.filter(|page| page.ends_with(".md")).collect()
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let table = Table::parse(&text("ARCHITECTURE.md")).unwrap();
    let files = Source::all_in("src");
    let lib = files
        .iter()
        .find(|file| file.path == "src/lib.rs")
        .expect("src/lib.rs");
    let names = imports::root_names(lib);
    expect_none(
        files
            .iter()
            .flat_map(|file| imports::check(file, &table, &names)),
    );
}

#[test]
fn the_modules_of_the_layer_for_calls_import_each_other_in_no_circle() {
    let files = Source::all_in("rpc/src");
    assert_eq!(imports::circle(&files, "rpc/src/"), None);
}

#[test]
fn the_protocol_knows_no_sockets_clocks_locks_or_wakers() {
    let files = Source::all_in("src");
    for folder in ["proto", "wire"] {
        let check = |file| imports::check_words(file, folder, &OUTSIDE_WORDS);
        expect_none(files.iter().flat_map(check));
    }
}

#[test]
fn endpoints_reach_the_protocol_through_progress() {
    let files = Source::all_in("src");
    let check = |file| imports::check_names(file, "endpoint", "proto", &PROTO_VALUES);
    expect_none(files.iter().flat_map(check));
}

#[test]
fn unsafe_stays_in_its_folders_and_says_why() {
    let files = Source::all_in("src");
    expect_none(files.iter().flat_map(rules::check_unsafe));
    expect_none(files.iter().flat_map(rules::check_forbids));
    for folder in ["bench", "rpc"] {
        let files = Source::all_in(folder);
        expect_none(files.iter().flat_map(rules::check_unsafe));
    }
}

#[test]
fn files_are_of_a_size_to_be_read() {
    let files = rust_files();
    expect_none(files.iter().flat_map(rules::check_size));
}

#[test]
fn the_library_does_not_print_sleep_or_unwrap() {
    expect_none(Source::all_in("src").iter().flat_map(rules::check_calls));
}

/// Its protocol is a machine without I/O too.
#[test]
fn the_rpc_layer_keeps_the_rules_of_the_library() {
    let files = Source::all_in("rpc/src");
    expect_none(files.iter().flat_map(rules::check_calls));
    for folder in ["rpc/src/proto/", "rpc/src/wire/"] {
        let inside = files.iter().filter(|it| it.path.starts_with(folder));
        for (file, (at, line)) in inside.flat_map(|it| it.product().map(move |line| (it, line))) {
            // What the library says of bytes and limits is no I/O.
            let line = line.replace("tokio_fabric", "");
            let found = OUTSIDE_WORDS
                .iter()
                .find(|it| source::find_word(&line, it).is_some());
            assert_eq!(found, None, "{}:{at}", file.path);
        }
    }
}

/// In a network of the test kit the same seed gives the same run.
#[test]
fn randomness_and_time_come_from_the_seed() {
    let folders = ["src", "rpc/src", "rpc/macros/src", "rpc/bin"];
    let files: Vec<_> = folders.into_iter().flat_map(Source::all_in).collect();
    expect_none(seeded::check(&files));
}

#[test]
fn thresholds_stand_in_limits() {
    let files = Source::all_in("src");
    expect_none(files.iter().flat_map(constants::check));
    expect_none(constants::check_list(&files));
}

/// Rustdoc shows the type of a constant that is a `Duration`, and not its value.
#[test]
fn times_say_their_value() {
    let files = ["src/limits.rs", "rpc/src/limits.rs"];
    expect_none(files.into_iter().flat_map(constants::check_values));
}

/// A map that names files which were renamed misleads.
#[test]
fn files_that_texts_name_are_there() {
    let files = rust_files();
    let ends_one = |name: &str| {
        let end = format!("/{name}");
        let is_named = |file: &Source| file.path.ends_with(&end) || file.path == name;
        files.iter().any(is_named) || root().join(name).exists()
    };
    for page in [
        "ARCHITECTURE.md",
        "docs/rulings.md",
        "docs/earned.md",
        "docs/glossary.md",
    ] {
        expect_none(papers::check_file_names(page, &text(page), ends_one));
    }
    for file in &files {
        let head = file.lines.iter().filter(|line| line.starts_with("//!"));
        let head: String = head.map(|line| format!("{line}\n")).collect();
        expect_none(papers::check_file_names(&file.path, &head, ends_one));
    }
    assert_eq!(
        papers::check_file_names("x", "as `gone.rs` and `here.rs` do", |it| it == "here.rs"),
        ["x: no gone.rs"]
    );
}

/// A bound that names its test can be looked up.
#[test]
fn tests_that_pages_cite_are_there() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_default();
    for page in ["SECURITY.md", "docs/memory-model.md"] {
        expect_none(papers::check_cited_tests(page, &text(page), read));
    }
    let one = papers::check_cited_tests("x", "| a.rs::b, a.rs::gone |", |_| "fn b() {".into());
    assert_eq!(one, ["x: no a.rs::gone"]);
}

#[test]
fn nothing_is_left_as_a_note() {
    expect_none(rust_files().iter().flat_map(rules::check_notes));
}

#[test]
fn public_documentation_names_no_rulings() {
    let files = Source::all_in("src");
    expect_none(files.iter().flat_map(rules::check_public_docs));
}

#[test]
fn lines_are_of_a_width_to_be_read() {
    expect_none(rust_files().iter().flat_map(rules::check_width));
}

#[test]
fn names_and_words_are_the_fields() {
    expect_none(rust_files().iter().flat_map(words::check));
    for page in pages() {
        expect_none(words::check_page(&page, &text(&page)));
    }
}

/// With `TOKIO_FABRIC_FEWER_NAMES=1` the list becomes that of those that are found.
#[test]
fn a_type_name_is_declared_once() {
    const LIST: &str = "tests/tidy/names.txt";
    let found = names::repeated(&Source::all_in("src"));
    let allowed = names::parse(&text(LIST)).unwrap();
    expect_none(names::check(&found, &allowed));
    if std::env::var_os("TOKIO_FABRIC_FEWER_NAMES").is_some() {
        std::fs::write(root().join(LIST), names::fewer(&found, &allowed)).unwrap();
    }
}

#[test]
fn examples_use_the_public_interface_only() {
    expect_none(
        Source::all_in("examples")
            .iter()
            .flat_map(rules::check_example),
    );
    for manifest in [
        "examples/Cargo.toml",
        "examples/pipeline/Cargo.toml",
        "examples/service/Cargo.toml",
        "examples/top/Cargo.toml",
    ] {
        expect_none(papers::check_manifest(manifest, &text(manifest)));
    }
}

#[test]
fn the_breaks_of_the_models_are_of_the_code_as_it_is() {
    expect_none(papers::check_breaks(&text("models/breaks.txt"), text));
}

/// A page has a purpose, and with it a length: what goes beyond is for another page.
#[test]
fn pages_are_of_a_size_to_be_read() {
    let lines = text("README.md").lines().count();
    assert!(lines <= 150, "README.md has {lines} lines");
    for (page, kilobytes) in [
        ("ARCHITECTURE.md", 12),
        ("docs/reliability.md", 12),
        ("docs/performance.md", 20),
    ] {
        let size = text(page).len();
        assert!(size <= kilobytes * 1000, "{page} has {size} bytes");
    }
}

#[test]
fn the_papers_agree_with_the_repository() {
    expect_none(papers::check_set_up(&text("README.md"), &text(".ci/run")));
    for page in pages() {
        let folder = root().join(&page);
        let folder = folder.parent().expect("a file has a folder");
        let exists = |target: &str| folder.join(target).exists();
        expect_none(papers::check_links(&page, &text(&page), exists));
    }
}

#[test]
fn the_page_of_events_is_what_the_source_logs() {
    let files = ["src", "rpc/src"].map(Source::all_in);
    let files = files.iter().flatten();
    let logged: Vec<_> = files.flat_map(events::of_source).collect();
    assert!(logged.len() > 60, "they are found");
    expect_none(events::check(
        logged,
        events::of_page(&text("docs/events.md")),
    ));
    // It can fail: by a level, a field, a word.
    let file = |code: &str| events::of_source(&Source::new("src/a.rs", code));
    let page = |row: &str| events::of_page(&format!("| level | event |\n|---|---|\n{row}"));
    let log = "fn f() { tracing::info!(parent: x, a = ?b(1, 2), %peer, \"up, (now)\"); }";
    assert!(events::check(file(log), page("| info | up, (now) | `a` `peer` | |")).is_empty());
    for wrong in [
        "| warn | up, (now) | `a` `peer` | |",
        "| info | up, (now) | `a` | |",
    ] {
        assert_eq!(events::check(file(log), page(wrong)).len(), 2);
    }
}

/// docs/operating.md has a line for each kind of error, and is short enough to be read.
#[test]
fn the_operators_page_has_every_error() {
    let page = text("docs/operating.md");
    assert!(page.len() <= 12_288, "{} bytes", page.len());
    let table = page
        .split("| kind | meaning | action |")
        .nth(1)
        .expect("a table");
    let source = text("src/error.rs");
    let kinds = source
        .split("pub enum ErrorKind {")
        .nth(1)
        .expect("the enum");
    let kinds = kinds.split("\n}").next().unwrap_or_default().lines();
    let names = kinds.filter_map(|line| line.trim().strip_suffix(','));
    let names: Vec<&str> = names
        .filter(|it| it.chars().all(char::is_alphanumeric))
        .collect();
    assert!(names.len() > 30, "{names:?}");
    let missing = names
        .iter()
        .filter(|it| !table.contains(&format!("`{it}`")));
    expect_none(missing.map(|it| format!("docs/operating.md lacks {it}")));
}
