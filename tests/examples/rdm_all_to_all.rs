//! The example of connectionless endpoints, run as its users run it: as processes of their own,
//! which join each other, leave, and die.

pub mod process;
#[path = "../../examples/rdm_all_to_all/status.rs"]
mod status;

use process::{Running, number, run, run_json};
use status::Status;

/// "alone it runs in this process": every kind of operation, over every backend, all to all at
/// once; what arrives is verified, and nothing is missing.
#[test]
fn alone_all_send_to_all_in_every_way_over_every_backend() {
    for backend in crate::common::backends() {
        for mode in ["message", "tagged", "rma"] {
            let args = [
                "--seconds",
                "1",
                "--mode",
                mode,
                "--backend",
                backend.name(),
            ];
            let object = run_json(&args);
            assert_eq!(object["backend"], backend.name());
            assert_eq!(object["members"], 8);
            assert_eq!(number(&object, "verified"), number(&object, "messages"));
            assert!(number(&object, "messages") >= 56, "{object}");
            process::assert_well(&object);
            assert_eq!(object["errors"], serde_json::json!({}), "{object}");
        }
    }
}

/// "size, window": messages larger than what is kept without a receive are announced, and arrive
/// all the same.
#[test]
fn large_messages_in_wide_windows_arrive() {
    for mode in ["message", "tagged", "rma"] {
        let args = ["--endpoints", "3", "--size", "100000", "--window", "9"];
        let object = run_json(&[&args[..], &["--seconds", "1", "--mode", mode]].concat());
        assert_eq!(number(&object, "verified"), number(&object, "messages"));
        process::assert_well(&object);
    }
    // The widest, in which receives of messages must leave room for those of control messages.
    let object = run_json(&["--endpoints", "3", "--window", "256", "--seconds", "1"]);
    process::assert_well(&object);
}

/// "falls back to one line per second when not a terminal", "ends with a summary".
#[test]
fn without_a_terminal_it_prints_lines_and_a_summary() {
    let output = run(&["--seconds", "2", "--endpoints", "3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(process::text(&output.stderr), "");
    let out = process::text(&output.stdout);
    assert!(!out.contains('\x1b'), "{out}");
    let lines = out.lines().filter(|line| line.contains(" s  6 pairs  "));
    let lines: Vec<&str> = lines.collect();
    assert!(matches!(lines.len(), 1..=3), "{out}");
    for line in lines {
        assert!(line.len() <= 80, "{line}");
        assert!(
            line.contains("slowest ") && line.contains("errors none"),
            "{line}"
        );
    }
    for words in [
        "done ",
        " right, 0 wrong, 0 out of order, 0 missing",
        "members   3",
    ] {
        assert!(out.contains(words), "{words:?} is not in {out}");
    }
}

/// "a matrix of messages/s per pair": on a terminal, within 80 columns, also with more endpoints
/// than there is room for.
#[test]
fn on_a_terminal_it_shows_a_matrix_of_80_columns() {
    for endpoints in ["4", "20"] {
        // On a busy machine 380 pairs take longer to connect than the example's 3 s.
        let args = [
            "--seconds",
            "2",
            "--give-up",
            "60",
            "--endpoints",
            endpoints,
        ];
        let shown = process::on_a_terminal(&args);
        let lines: Vec<String> = shown.lines().map(process::without_escapes).collect();
        let wide = lines.iter().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None);
        let heads: Vec<&String> = lines
            .iter()
            .filter(|it| it.starts_with("from/to"))
            .collect();
        assert!(heads.len() > 1, "it is drawn anew: {shown}");
        let last = lines
            .iter()
            .rposition(|it| it.starts_with("from/to"))
            .unwrap();
        let rows = if endpoints == "4" { 4 } else { 14 };
        for row in 0..rows {
            let cells: Vec<&str> = lines[last + 1 + row].split_whitespace().collect();
            assert_eq!(cells.len(), rows + 1, "{shown}");
            if row < 4 {
                assert_eq!((cells[0], cells[row + 1]), (&*row.to_string(), "-"));
            }
        }
        assert!(lines[last + 1 + rows].contains("slowest"), "{shown}");
        assert!(lines[last + 2 + rows].starts_with("errors "), "{shown}");
    }
}

/// The end of an operation that is noticed after the peer's good-bye brings no peer back that has
/// left: it would be sent to for as long as it cannot be reached.
#[test]
fn a_member_that_has_left_is_not_living_again_by_what_is_noticed_late() {
    use Status::{Gone, Left, Living, Lost, New};
    for seen in [Living, Lost, Gone] {
        assert_eq!(Left.after(seen), Left);
        for before in [New, Living, Lost, Gone] {
            assert_eq!(before.after(seen), seen);
            assert_eq!(before.after(Left), Left);
        }
    }
}

/// "across processes: `--join host:port` / a seed list file"; "Ctrl-C ends in order": both sides
/// report that nothing is missing, and no error.
#[test]
fn two_processes_join_and_end_in_order() {
    let first = Running::start(&["--seconds", "0", "--endpoints", "3", "--mode", "tagged"]);
    let mut seeds = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(
        &mut seeds,
        format!("# whom to join\n\n{}\n", first.address).as_bytes(),
    )
    .unwrap();
    let path = seeds.path().to_str().unwrap();
    let second = run_json(&["--seconds", "2", "--endpoints", "2", "--seeds", path]);
    process::assert_well(&second);
    assert_eq!(
        (&second["members"], &second["gone"]),
        (&5.into(), &serde_json::json!([]))
    );
    assert_eq!(second["errors"], serde_json::json!({}));
    let third = Running::start(&["--seconds", "0", "--mode", "rma", "--join", &first.address]);
    first.said_of(8, "has joined");
    third.said_of(3, "has joined");
    let first = first.interrupt();
    process::assert_well(&first);
    assert_eq!(first["errors"], serde_json::json!({}));
    assert_eq!(first["members"], 13);
    // A member that said it leaves is no loss.
    third.said_of(3, "leaves");
    let third = third.interrupt();
    process::assert_well(&third);
    assert_eq!(third["gone"], serde_json::json!([]));
}

/// One process is killed: the other names the dead peers and goes on with the living. A process
/// that comes back at the same address is a peer again.
#[test]
fn the_dead_are_named_and_the_living_go_on() {
    for mode in ["message", "tagged", "rma"] {
        // Long enough for who lives on a busy machine, since those that are given up stay so.
        let mode = ["--seconds", "0", "--give-up", "3", "--mode", mode];
        let [two, three] = [["--endpoints", "2"], ["--endpoints", "3"]];
        let first = Running::start(&[&mode[..], &three].concat());
        let join = ["--join", &first.address];
        let second = Running::start(&[&mode[..], &two, &join].concat());
        let third = Running::start(&[&mode[..], &two, &join].concat());
        first.said_of(4, "has joined");
        third.said_of(5, "has joined");
        let dead = second.address.clone();
        second.kill();
        first.said_of(2, "is gone: ");
        third.said_of(2, "is gone: ");
        first.said(&format!("{dead} is gone: "));
        let port = dead.parse::<std::net::SocketAddr>().unwrap().to_string();
        let again = ["--endpoints", "1", "--listen", &port];
        let again = Running::start(&[&mode[..], &again, &["--join", &third.address]].concat());
        first.said(&format!("{dead} is back"));
        again.said_of(5, "has joined");
        for (living, gone) in [(again, 1), (third, 1), (first, 1)] {
            let object = living.interrupt();
            process::assert_well(&object);
            let reported = object["gone"].as_array().unwrap();
            assert!(reported.len() <= gone, "{object}");
            assert!(!reported.contains(&dead.clone().into()), "{object}");
            assert!(number(&object, "verified") > 0, "{object}");
        }
    }
}

/// Bad input is one clear line, and a failure.
#[test]
fn bad_input_is_reported() {
    let absent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let absent = absent.local_addr().unwrap().to_string();
    for (args, words) in [
        (&["--seeds", "/no/such/file"][..], "/no/such/file"),
        (&["--backend", "carrier-pigeon"], "carrier-pigeon"),
        (
            &["--backend", "loopback", "--join", "127.0.0.1:1"],
            "loopback",
        ),
        (&["--listen", "0.0.0.0"], "wildcard"),
        (&["--size", "15"], "15"),
        (&["--join", &absent, "--give-up", "1"], &absent),
    ] {
        let output = run(args);
        let err = process::text(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(err.contains(words) && !err.contains("panicked"), "{err}");
    }
}
