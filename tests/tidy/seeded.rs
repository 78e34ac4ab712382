//! Randomness and time that follow no seed: where they may be drawn, and why.

use crate::source::{Source, find_word};

/// Files that may, with the reason. Elsewhere random numbers come from `random.rs` (in the layer
/// for calls from `Domain::random_number`), and the time is Tokio's or a `Clock`'s.
const MAY: [(&str, &str); 17] = [
    ("src/av/shared/mod.rs", "waits for other processes"),
    ("src/av/shared/record.rs", "other processes see the number"),
    ("src/domain/blocking.rs", "of threads; a seed has tasks"),
    (
        "src/progress/blocking_turns.rs",
        "of threads; a seed has tasks",
    ),
    ("src/progress/driver.rs", "busy polling spends real time"),
    ("src/progress/port/latency.rs", "measures, decides nothing"),
    ("src/progress/spin.rs", "busy polling spends real time"),
    (
        "src/proto/matching/multi_list.rs",
        "no list depends on the order",
    ),
    ("src/random.rs", "the source, unless it has a seed"),
    ("src/transport/address.rs", "ports of the system"),
    (
        "src/transport/epoll/clock.rs",
        "sockets have the real clock",
    ),
    (
        "src/transport/local/carrier.rs",
        "sockets have the real clock",
    ),
    (
        "src/transport/local/rendezvous.rs",
        "a name that is of the process",
    ),
    (
        "src/transport/uring/submit.rs",
        "sockets have the real clock",
    ),
    ("src/transport/uring/teardown.rs", "waits for the kernel"),
    (
        "src/transport/uring/thread.rs",
        "sockets have the real clock",
    ),
    ("rpc/src/drive.rs", "only where the backend is of sockets"),
];

/// What gives another number, order or time in each run.
const WORDS: [&str; 8] = [
    "getrandom",
    "fastrand",
    "rand",
    "RandomState",
    "DefaultHasher",
    "SystemTime",
    "std::time::Instant::now",
    "std::time::UNIX_EPOCH",
];

/// In a file that uses the system's clock by its short name.
const CLOCK_WORDS: [&str; 2] = ["Instant::now", ".elapsed"];

/// The layer for calls has maps in order, so that what it does with all of their entries is.
const MAPS: [&str; 2] = ["HashMap", "HashSet"];

/// Files that draw and may not, and files that may and do not.
pub fn check(files: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files {
        let drawn = drawn(file);
        match MAY.iter().find(|(path, _)| *path == file.path) {
            None => wrong.extend(drawn),
            Some(_) if drawn.is_empty() => wrong.push(format!("{} draws nothing", file.path)),
            Some(_) => {}
        }
    }
    let is_there = |path: &str| files.iter().any(|file| file.path == path);
    let gone = MAY.iter().filter(|(path, _)| !is_there(path));
    wrong.extend(gone.map(|(path, _)| format!("{path} is gone")));
    wrong
}

/// The lines of product code that draw.
fn drawn(file: &Source) -> Vec<String> {
    let imports_clock = imports_clock(&file.product_text());
    let mut wrong = Vec::new();
    for (at, line) in file.product() {
        let line = line.replace("tokio::time::Instant", "");
        let clock_words = CLOCK_WORDS.iter().filter(|_| imports_clock);
        let maps = MAPS.iter().filter(|_| file.path.starts_with("rpc/"));
        let mut words = WORDS.iter().chain(clock_words).chain(maps);
        if let Some(word) = words.find(|word| find_word(&line, word).is_some()) {
            let path = &file.path;
            wrong.push(format!("{path}:{at}: {word} follows no seed"));
        }
    }
    wrong
}

fn imports_clock(text: &str) -> bool {
    let of_time = text.split("use std::time::").skip(1);
    let mut imported = of_time.filter_map(|rest| rest.split(';').next());
    imported.any(|names| find_word(names, "Instant").is_some())
}

#[test]
fn what_follows_no_seed_is_found() {
    let lines = |path: &str, text: &str| drawn(&Source::new(path, text)).len();
    let core = |text: &str| lines("src/eq/sample.rs", text);
    assert_eq!(core("let hasher = RandomState::new();"), 1);
    assert_eq!(core("let at = std::time::Instant::now();"), 1);
    assert_eq!(
        core("use std::time::{Duration, Instant};\nlet at = Instant::now();"),
        1
    );
    assert_eq!(
        core("use std::time::Instant;\nlet took = since.elapsed();"),
        1
    );
    assert_eq!(
        core("use tokio::time::Instant;\nlet at = Instant::now().elapsed();"),
        0
    );
    assert_eq!(
        core("use std::time::Instant;\nlet at = tokio::time::Instant::now();"),
        0
    );
    assert_eq!(
        core("#[cfg(test)]\nmod tests { fn f() { getrandom::u64(); } }"),
        0
    );
    assert_eq!(core("let map = HashMap::new();"), 0);
    assert_eq!(lines("rpc/src/sample.rs", "let map = HashMap::new();"), 1);
}

#[test]
fn a_file_that_may_draw_does() {
    let (path, _) = MAY[0];
    let draws = Source::new(path, "let at = std::time::Instant::now();");
    assert_eq!(check(std::slice::from_ref(&draws)).len(), MAY.len() - 1);
    let draws_nothing = Source::new(path, "");
    assert_eq!(check(&[draws_nothing]).len(), MAY.len());
}
