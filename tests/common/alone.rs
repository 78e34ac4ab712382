//! Tests of what belongs to a whole process: its limits, its descriptors, its threads.

use std::panic::AssertUnwindSafe;
use std::path::Path;
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
    run(Command::new(program), name, variables)
}

/// As [`alone`], with networks and mounts of its own, which this shell script makes ready. `None`:
/// this process may not have any, and the test says that it is left out.
///
/// # Panics
///
/// As [`alone`], and when the script fails.
#[track_caller]
pub fn alone_in_namespaces(name: &str, script: &str) -> Option<String> {
    let unshare = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "sh", "-e", "-c", command]);
        unshare
    };
    let may = unshare("ip link set lo up").output();
    if !may.is_ok_and(|done| done.status.success()) {
        super::left_out("no network namespace can be made");
        return None;
    }
    let mut command = unshare(&format!("ip link set lo up\n{script}\nexec \"$0\" \"$@\""));
    command.arg(std::env::current_exe().expect("this program"));
    Some(run(command, name, &[]))
}

/// As [`alone`], in a control group with so many bytes of memory, and no swap. `None`: this process
/// may not make one, and the test says that it is left out.
///
/// # Panics
///
/// As [`alone`].
#[track_caller]
pub fn alone_in_control_group(name: &str, bytes: u64) -> Option<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.split_once(":memory:"));
    // Of the first version a group of its own one, of the second one at the top, since there a
    // group with processes has no others.
    let (parent, limits) = match own {
        Some((_, path)) => (
            format!("/sys/fs/cgroup/memory{path}"),
            ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
        ),
        None => (
            "/sys/fs/cgroup".to_owned(),
            ["memory.max", "memory.swap.max"],
        ),
    };
    let group = Path::new(&parent).join(format!("tofa-{}", std::process::id()));
    let swap = if own.is_some() { bytes } else { 0 };
    let made = std::fs::create_dir(&group)
        .and_then(|()| std::fs::write(group.join(limits[0]), bytes.to_string()));
    // Where swap is not accounted for, there is no such file.
    let _ = std::fs::write(group.join(limits[1]), swap.to_string());
    let output = match made {
        Err(error) => {
            super::left_out(format!("no control group can be made: {error}"));
            None
        }
        Ok(()) => {
            let enter = format!("echo $$ > {}/cgroup.procs", group.display());
            let mut command = Command::new("sh");
            command.args(["-e", "-c", &format!("{enter}\nexec \"$0\" \"$@\"")]);
            command.arg(std::env::current_exe().expect("this program"));
            let ran = std::panic::catch_unwind(AssertUnwindSafe(|| run(command, name, &[])));
            Some(ran)
        }
    };
    let _ = std::fs::remove_dir(&group);
    output.map(|ran| ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

#[track_caller]
fn run(mut program: Command, name: &str, variables: &[(&str, &str)]) -> String {
    let output = program
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
