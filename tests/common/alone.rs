//! Tests of what belongs to a whole process: its limits, its descriptors, its threads.

use std::process::Command;

/// Runs the ignored test `name` of this program in a process of its own, whose output is returned.
///
/// # Panics
///
/// When it fails, and when there is no such test: the runner finds nothing wrong with running none.
#[track_caller]
pub fn alone(name: &str) -> String {
    alone_with(name, &[])
}

/// As [`alone`], with these environment variables.
///
/// # Panics
///
/// As [`alone`].
#[track_caller]
pub fn alone_with(name: &str, variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([
            name,
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .envs(variables.iter().copied())
        .output()
        .expect("a second process");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("test result: ok. 1 passed"),
        "{name} fails alone, or does not exist:\n{printed}\n{errors}"
    );
    printed + &errors
}
