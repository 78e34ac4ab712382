//! Connectionless endpoints (`FI_EP_RDM`), all of which send to all others at once.
//!
//! An endpoint is opened and listens. It names its peers by entries of an address vector. The first
//! operation to a peer connects; one endpoint receives from all peers. Read `party.rs` for opening,
//! `send_task.rs` for sending and for the effect of a dead peer, `inbox.rs` for receiving.
//!
//! The members find each other by RDM, too: a tagged message lists the members that its sender
//! knows, and the receiver sends its own list to each new member.
//!
//! ```text
//! cargo run --release --example rdm_all_to_all                # 8 endpoints in this process
//! cargo run --release --example rdm_all_to_all -- --mode rma --size 65536 --window 16
//! cargo run --release --example rdm_all_to_all -- --listen 192.168.0.7:7471 --seconds 0
//! cargo run --release --example rdm_all_to_all -- --listen 192.168.0.8 --join 192.168.0.7:7471
//! ```

mod board;
mod control;
mod inbox;
mod message;
mod options;
mod party;
mod send_task;
mod serve;
mod stats;
mod status;
mod view;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use options::{Mode, Options};
use party::Party;
use status::Status;
use view::{View, errors, short};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: not everything arrived as it was sent");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let options = Options::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(all_to_all(options))
}

async fn all_to_all(options: Options) -> Result<bool> {
    let party = Party::open(options).await?;
    let json = party.options.json;
    let (address, count) = (party.locals[0].announced.address, party.locals.len());
    let first = format!("listening, {count} endpoints; others --join {address}");
    // The process that started this one may wait for the line, or may have ended.
    let _ = match json {
        true => writeln!(std::io::stderr(), "{first}"),
        false => writeln!(std::io::stdout(), "{first}"),
    };
    let (start, mut view) = (Instant::now(), View::new(json));
    let _served = match party.options.stats.clone() {
        Some(place) => {
            let of = party.clone();
            Some(serve::serve(place, move || stats::snapshot(&of, start)).await?)
        }
        None => None,
    };
    let mut interrupts = signal(SignalKind::interrupt())?;
    party.start();
    party.join().await?;
    let time = party.options.time().unwrap_or(Duration::MAX);
    let over = tokio::time::sleep(time);
    tokio::pin!(over);
    let mut looks = tokio::time::interval(view.interval());
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    looks.tick().await; // At once, when there is nothing to be seen yet.
    loop {
        tokio::select! {
            _ = looks.tick() => view.show(&party),
            () = &mut over => break,
            _ = interrupts.recv() => break,
        }
    }
    let took = start.elapsed();
    tokio::select! {
        () = party.finish() => {}
        // A second Ctrl-C ends the program at once.
        _ = interrupts.recv() => {}
    }
    view.show_notes(&party);
    Ok(summary(&party, took))
}

/// Prints the result. True if everything that was sent arrived, unchanged.
fn summary(party: &Party, took: Duration) -> bool {
    let board = &party.board;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    let pairs = board.pairs();
    let done: u64 = pairs.iter().map(|pair| count(&pair.done)).sum();
    let rate = done as f64 / took.as_secs_f64();
    let (verified, wrong) = (count(&board.verified), count(&board.wrong));
    let (misordered, skipped) = (count(&board.misordered), count(&board.skipped));
    let missing = party.missing();
    let members = party.members();
    let gone = members.iter();
    let gone = gone.filter(|member| matches!(member.status(), Status::Lost | Status::Gone));
    let gone: Vec<String> = gone
        .map(|member| member.announced().address.to_string())
        .collect();
    if party.options.json {
        let object = serde_json::json!({
            "members": members.len(),
            "messages": done,
            "per_second": rate,
            "verified": verified,
            "wrong": wrong,
            "misordered": misordered,
            "missing": missing,
            "skipped": skipped,
            "gone": gone,
            "errors": board.errors(),
            "backend": party.backend().to_string(),
        });
        println!("{object}");
    } else {
        let what = match party.options.mode {
            Mode::Message => "messages",
            Mode::Tagged => "tagged messages",
            Mode::Rma => "reads",
        };
        let bytes = short(rate * party.options.size() as f64);
        let seconds = took.as_secs_f64();
        println!("done      {done} {what} in {seconds:.1} s: {rate:.0}/s, {bytes}B/s");
        let missing = missing.map_or("unknown how many".to_owned(), |count| count.to_string());
        println!(
            "verified  {verified} right, {wrong} wrong, {misordered} out of order, \
             {missing} missing"
        );
        println!("errors    {}", errors(&board.errors()));
        if !gone.is_empty() {
            println!("gone      {}", gone.join(", "));
        }
        println!("members   {}, over {}", members.len(), party.backend());
    }
    wrong == 0 && misordered == 0 && missing == Some(0)
}
