//! `info`: what is there, in a table and as JSON.

use std::process::{Command, Output};

use serde_json::Value;

/// The example's program is built beside this one.
fn run(arguments: &[&str]) -> Output {
    let own = std::env::current_exe().expect("this program");
    let built = own.parent().and_then(|deps| deps.parent()).expect("target");
    let mut command = Command::new(built.join("examples/info"));
    command
        .args(arguments)
        .output()
        .expect("`cargo test` builds it")
}

#[test]
fn what_is_offered_is_listed_by_interface_kind_and_backend() {
    let output = run(&["--json", "--interface", "lo"]);
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let infos = all["infos"].as_array().unwrap();
    for kind in ["msg", "rdm", "dgram"] {
        let one = infos.iter().find(|info| info["kind"] == kind);
        let one = one.expect("every kind is offered on every interface");
        assert_eq!(one["interface"], "lo");
        assert!(one["caps"].as_array().unwrap().iter().any(|it| it == "MSG"));
    }
    let epoll = &all["backends"].as_array().unwrap()[0];
    assert_eq!(
        (&epoll["name"], epoll["why_not"].is_null()),
        (&"epoll".into(), true)
    );
    let table = run(&["--endpoint", "rdm", "--interface", "lo"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("backend epoll     yes") && table.contains("rdm"),
        "{table}"
    );
    // What cannot be had is an error that names the hint.
    let none = run(&["--interface", "none0"]);
    assert!(!none.status.success());
    let why = String::from_utf8(none.stderr).unwrap();
    assert!(why.contains("none0") && why.contains("lo"), "{why}");
}
