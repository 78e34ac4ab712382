//! Numbers that tune the library stand in `src/limits.rs`. A number or a time that is a constant
//! elsewhere belongs to a format: of the wire (`src/wire`), or one of [`FORMATS`].

use crate::source::{Source, text};

/// Where constants of a format stand, which ones, and what fixes them. `*`: all of the file.
const FORMATS: &[(&str, &str, &str)] = &[
    ("src/av/shared/record.rs", "*", "the layout of a file"),
    ("src/buf/backing.rs", "WRITING_RIGHTS", "libfabric's bits"),
    ("src/buf/mapped.rs", "HUGE_PAGE", "the processor"),
    (
        "src/buf/watch.rs",
        "API EVENT_REMAP EVENT_REMOVE EVENT_UNMAP FEATURES MODE_WRITE_PROTECT USER_MODE_ONLY \
         REGISTER UNREGISTER HANDSHAKE",
        "the kernel's userfaultfd",
    ),
    ("src/id.rs", "*", "the bits of identifiers"),
    (
        "src/info/mod.rs",
        "MTU_USUAL UDP_HEADER",
        "Ethernet and UDP",
    ),
    (
        "src/info/offer.rs",
        "CQ_DATA_SIZE TAG_GENERIC",
        "libfabric's wire and tags",
    ),
    ("src/info/resolve/domain.rs", "MR_KEY_SIZE", "the wire"),
    ("src/mr/key.rs", "KEY_NOT_AVAILABLE", "libfabric's number"),
    ("src/mr/raw.rs", "VERSION DEMAND", "the layout of a raw key"),
    (
        "src/mr/remote.rs",
        "ENCODED_LEN",
        "the layout of an encoded region",
    ),
    (
        "src/progress/sent.rs",
        "HAS_UNSENT",
        "a bit of an atomic word",
    ),
    (
        "src/proto/conn/liveness.rs",
        "UNASKED",
        "a token of the protocol",
    ),
    (
        "src/proto/conn/tx/handed_out.rs",
        "*",
        "values in place of a key",
    ),
    (
        "src/proto/matching/admission.rs",
        "TOTAL_MAX",
        "keeps sums within a u64",
    ),
    (
        "src/proto/matching/message_index.rs",
        "SLOTS",
        "the number of a message's lists",
    ),
    (
        "src/proto/peers/mod.rs",
        "KEY_SHIFT ALL",
        "the bits of a source",
    ),
    ("src/sync/gate/word.rs", "*", "the bits of the gate's word"),
    ("src/sync/handover.rs", "*", "the states of a record"),
    (
        "src/transport/epoll/clock.rs",
        "FAR_SECONDS",
        "what the kernel's timer takes",
    ),
    (
        "src/transport/epoll/mmsg.rs",
        "SEGMENTED_BYTES_MAX WORDS",
        "UDP, and the kernel's meminfo",
    ),
    (
        "src/transport/epoll/tcp_info.rs",
        "SECONDS_MAX COUNT_MAX",
        "what socket options take",
    ),
    (
        "src/transport/loopback/mod.rs",
        "FIRST_EPHEMERAL_PORT",
        "RFC 6335",
    ),
    ("src/transport/tls/record.rs", "*", "TLS 1.3"),
    (
        "src/transport/uring/bufs.rs",
        "GROUP",
        "the name of the buffer group",
    ),
    ("src/transport/uring/op.rs", "*", "the bits of user_data"),
    (
        "src/transport/uring/thread.rs",
        "AWAKE ASLEEP NOTIFIED",
        "states of a word",
    ),
];

/// Not of the library: the test kit, the fault injector, the counted steps.
const OUTSIDE: [&str; 4] = [
    "src/wire/",
    "src/testing/",
    "src/transport/fault.rs",
    "src/instructions.rs",
];

const TYPES: [&str; 12] = [
    "usize", "u64", "u32", "u16", "u8", "isize", "i64", "i32", "i16", "i8", "f64", "Duration",
];

/// Public times of a file of limits, and computed sizes and counts, whose comment does not end in
/// "Value: 10 s." or the like: documentation shows only numbers that are written out.
pub fn check_values(path: &str) -> Vec<String> {
    let (mut wrong, mut comment) = (Vec::new(), String::new());
    for line in text(path).lines() {
        let value = line
            .strip_prefix("pub const ")
            .and_then(|it| it.split_once(": Duration = Duration::from_"))
            .map(|(_, value)| value.trim_end_matches(");"));
        if let Some((unit, number)) = value.and_then(|it| it.split_once('(')) {
            let said = match (unit, number) {
                ("secs", "60 * 60") => "1 h".to_owned(),
                ("secs", number) => format!("{number} s"),
                ("millis", number) => format!("{number} ms"),
                (_, number) => format!("{number} µs"),
            };
            if !comment.ends_with(&format!("Value: {said}.")) {
                wrong.push(format!(
                    "{path}: {line} Its comment ends in `Value: {said}.`"
                ));
            }
        }
        let number = line.strip_prefix("pub const ");
        let number = number.and_then(|it| it.strip_suffix(';')?.split_once(" = "));
        if let Some((name, value)) = number {
            let is_number = ["usize", "u64", "u32"].iter().any(|it| name.ends_with(it));
            let is_written_out = value.bytes().all(|it| it.is_ascii_digit() || it == b'_');
            let said = match value.split_once(" << ") {
                Some((number, "10")) => format!("Value: {number} KiB."),
                Some((number, "20")) if !name.contains("ADDRESSES") => {
                    format!("Value: {number} MiB.")
                }
                _ => "Value: ".to_owned(),
            };
            if is_number && !is_written_out && !comment.contains(&said) {
                wrong.push(format!("{path}: {line} Its comment ends in `{said}`"));
            }
        }
        if line.starts_with("///") {
            comment = line.to_owned();
        }
    }
    wrong
}

/// Thresholds that stand elsewhere than in `src/limits.rs`.
pub fn check(source: &Source) -> Vec<String> {
    let is_outside = |prefix: &&str| source.path.starts_with(*prefix);
    if source.path == "src/limits.rs" || OUTSIDE.iter().any(is_outside) {
        return Vec::new();
    }
    let constants = source
        .product()
        .filter_map(|(at, line)| Some((at, number(line)?)));
    constants
        .filter(|(_, name)| !is_format(&source.path, name))
        .map(|(at, name)| {
            let path = &source.path;
            format!("{path}:{at}: {name} is a threshold: it stands in src/limits.rs")
        })
        .collect()
}

/// Rows of the list whose file or constant is not there any more.
pub fn check_list(files: &[Source]) -> Vec<String> {
    let is_there = |path: &str, name: &str| {
        let source = files.iter().find(|file| file.path == path);
        source.is_some_and(|file| {
            let mut names = file.code.iter().filter_map(|line| number(line));
            names.any(|it| name == "*" || it == name)
        })
    };
    let names = |&(path, names, _): &(&'static str, &'static str, &str)| {
        names.split_whitespace().map(move |name| (path, name))
    };
    let stale = FORMATS.iter().flat_map(names);
    stale
        .filter(|(path, name)| !is_there(path, name))
        .map(|(path, name)| format!("constants.rs: {path} has no constant {name}"))
        .collect()
}

fn is_format(path: &str, name: &str) -> bool {
    FORMATS.iter().any(|(file, names, _)| {
        *file == path && names.split_whitespace().any(|it| it == "*" || it == name)
    })
}

/// The name of a constant number or time that the line defines by a literal. One that follows from
/// others has none.
fn number(line: &str) -> Option<&str> {
    let line = line.trim();
    let (_, rest) = line
        .split_once("const ")
        .or_else(|| line.split_once("static "))?;
    let (name, rest) = rest.split_once(':')?;
    let (kind, value) = rest.split_once('=')?;
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let kind = kind.trim().rsplit("::").next()?;
    let has_literal = value
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|word| {
            word.starts_with(|c: char| c.is_ascii_digit()) || ["MAX", "MIN"].contains(&word)
        });
    (is_name && TYPES.contains(&kind) && has_literal).then_some(name)
}

#[test]
fn a_threshold_outside_of_limits_is_found() {
    let check = |path, text| check(&Source::new(path, text)).len();
    assert_eq!(check("src/eq/mod.rs", "    const A_MAX: usize = 64;"), 1);
    assert_eq!(
        check(
            "src/eq/mod.rs",
            "const A: Duration = Duration::from_secs(1);"
        ),
        1
    );
    assert_eq!(check("src/limits.rs", "pub const A_MAX: usize = 64;"), 0);
    assert_eq!(check("src/wire/cm.rs", "const A_SIZE: usize = 64;"), 0);
    assert_eq!(check("src/id.rs", "const BITS: u32 = 24;"), 0);
    assert_eq!(
        check("src/eq/mod.rs", "const A: usize = B * size_of::<C>();"),
        0
    );
    assert_eq!(check("src/eq/mod.rs", "const A: &str = \"1\";"), 0);
    assert_eq!(
        check(
            "src/eq/mod.rs",
            "#[cfg(test)]\nmod t {\n const A: u8 = 1;\n}"
        ),
        0
    );
}

#[test]
fn a_stale_row_is_found() {
    assert!(check_list(&[]).len() > FORMATS.len());
    let files = Source::all_in("src");
    assert_eq!(check_list(&files), [""; 0]);
}
