//! The example `pipeline`, run as its users run it: a program of its own, on real files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use arrow_array::{Int32Array, RecordBatch};
use arrow_ipc::writer::FileWriter;

fn program() -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let built = test.ancestors().nth(2).expect("deps, and its profile");
    let program = built.join("examples").join("pipeline");
    assert!(
        program.is_file(),
        "{program:?} is missing: cargo test makes it"
    );
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(Stdio::piped());
    command
}

#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaint}");
    let lines: Vec<String> = said.lines().map(str::to_owned).collect();
    for line in &lines {
        assert!(line.is_ascii() && line.len() <= 80, "{line}");
    }
    lines
}

/// A file with batches of these many rows.
fn write(path: &Path, batches: &[i32]) {
    let batch = |rows| {
        let numbers = Int32Array::from_iter_values(0..rows);
        RecordBatch::try_from_iter([("number", Arc::new(numbers) as _)]).unwrap()
    };
    let schema = batch(0).schema();
    let mut writer = FileWriter::try_new(File::create(path).unwrap(), &schema).unwrap();
    for rows in batches {
        writer.write(&batch(*rows)).unwrap();
    }
    writer.finish().unwrap();
}

/// "awaits registration of each batch while the previous one is transferred, and shows the overlap
/// in its printed timeline": of a file that it makes itself.
#[test]
fn alone_it_makes_its_input_and_shows_what_overlapped() {
    let output = program()
        .args(["--batches", "9", "--rows", "20000"])
        .output();
    let lines = lines(&output.unwrap());
    let rows = lines.iter().filter(|line| line.contains(" 20000 ")).count();
    assert_eq!(rows, 9, "{lines:#?}");
    let line_with = |what: &str| lines.iter().find(|line| line.contains(what));
    let beside = line_with(" registrations ran beside a transfer").expect("it is printed");
    let (count, rest) = beside.split_once(" of 9 ").expect("of all of them");
    let count: usize = count.parse().unwrap();
    assert!(count > 0 && rest.contains(" ms of "), "{beside}");
    assert!(line_with("The peer received 9 batches, 180000 rows").is_some());
    assert!(line_with("Every batch arrived as it was sent.").is_some());
}

/// "reads real files (Arrow IPC ..)", with the peer in a process of its own.
#[test]
fn a_file_goes_to_a_peer_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbers.arrow");
    write(&file, &[3, 0, 100_000, 1]);
    let mut peer = program();
    let mut peer = peer.args(["--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut said = BufReader::new(peer.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line
        .trim()
        .strip_prefix("listening on ")
        .expect("an address");
    let file = file.to_str().unwrap();
    let output = program()
        .args(["--connect", address, "--file", file])
        .output();
    let lines = lines(&output.unwrap());
    assert!(
        lines.iter().any(|line| line.starts_with("    2   100000 ")),
        "{lines:#?}"
    );
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(peer.wait().unwrap().success());
    assert!(
        rest.starts_with("received 4 batches, 100004 rows, "),
        "{rest}"
    );
}

/// A file that is no Arrow file is reported in one line, and no process waits.
#[test]
fn a_file_of_another_kind_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"no batches in here").unwrap();
    let output = program().arg("--file").arg(file.path()).output().unwrap();
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.contains(file.path().to_str().unwrap()),
        "{complaint}"
    );
}
