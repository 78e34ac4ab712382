//! The environment variables of the registration cache, read by a process of their own
//! (`fi_mr(3)`).

use std::process::Command;

use tokio_fabric::{Fabric, Hints, buf::SharedBuffer};

/// Not a test by itself: what a process says of a cache it opens.
#[test]
#[ignore = "run by the others with an environment of their own"]
fn what_a_process_sees() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stdout)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let domain = Fabric::open(Hints::new()).unwrap().domain().open().unwrap();
    let cache = domain.cache().open().unwrap();
    let limits = (cache.max_size(), cache.max_count(), cache.merges_regions());
    println!("\ncache {limits:?}");
    let builder = domain.cache().max_size(5).max_count(6).merge_regions(false);
    let built = builder.open().unwrap();
    let limits = (built.max_size(), built.max_count(), built.merges_regions());
    println!("built {limits:?}");
    let buffer = SharedBuffer::new(vec![0; 100]);
    for range in [0..50, 50..100] {
        drop(cache.register(&buffer, range).now().unwrap());
    }
    println!("kept {}, {}", cache.stats().count, cache.stats().size);
}

/// The lines of a process with these variables: of a cache, of one that is built, and what was kept
/// of two neighbours of 50 bytes; and its warnings.
fn limits_with(variables: &[(&str, &str)]) -> ([String; 3], Vec<String>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "cache_environment::what_a_process_sees",
        "--include-ignored",
        "--nocapture",
    ]);
    for name in ["SIZE", "COUNT"] {
        command.env_remove(format!("FI_MR_CACHE_MAX_{name}"));
    }
    command.env_remove("FI_MR_CACHE_MERGE_REGIONS");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |word: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(word));
        found.expect("the process says so").to_owned()
    };
    let warnings = text.lines().filter(|line| line.contains("WARN"));
    let lines = [line("cache "), line("built "), line("kept ")];
    (lines, warnings.map(str::to_owned).collect())
}

const BUILT: &str = "(Some(5), 6, false)";

/// fi_mr(3): `FI_MR_CACHE_MAX_SIZE`, `FI_MR_CACHE_MAX_COUNT` and `FI_MR_CACHE_MERGE_REGIONS`,
/// environment variables: "The following environment variables may be used to configure
/// registration caches." A builder's call beats them.
#[test]
fn the_environment_configures_caches_and_a_builders_call_beats_it() {
    let (lines, warnings) = limits_with(&[]);
    assert_eq!(lines, ["(None, 1024, false)", BUILT, "2, 100"]);
    assert_eq!(warnings, [""; 0]);

    let (lines, warnings) = limits_with(&[
        ("FI_MR_CACHE_MAX_SIZE", "1000"),
        ("FI_MR_CACHE_MAX_COUNT", "20"),
        ("FI_MR_CACHE_MERGE_REGIONS", "yes"),
    ]);
    assert_eq!(lines, ["(Some(1000), 20, true)", BUILT, "1, 100"]);
    assert_eq!(warnings, [""; 0]);

    let (lines, _) = limits_with(&[("FI_MR_CACHE_MAX_SIZE", "60")]);
    assert_eq!(lines, ["(Some(60), 1024, false)", BUILT, "1, 50"]);
    let (lines, _) = limits_with(&[("FI_MR_CACHE_MAX_COUNT", "0")]);
    assert_eq!(lines, ["(None, 0, false)", BUILT, "0, 0"]);
}

/// Words that mean nothing change nothing, and are one warning that names them all.
#[test]
fn words_that_mean_nothing_are_one_warning() {
    let (lines, warnings) = limits_with(&[
        ("FI_MR_CACHE_MAX_SIZE", "much"),
        ("FI_MR_CACHE_MAX_COUNT", "12 regions"),
        ("FI_MR_CACHE_MERGE_REGIONS", "2"),
    ]);
    assert_eq!(lines, ["(None, 1024, false)", BUILT, "2, 100"]);
    // Each of the two caches reads the environment, and one warning is logged.
    let [warning] = &warnings[..] else {
        panic!("{} warnings: {warnings:?}", warnings.len());
    };
    for name in ["MAX_SIZE", "MAX_COUNT", "MERGE_REGIONS"] {
        assert!(warning.contains(name), "{warning}");
    }
}
